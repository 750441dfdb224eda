"""transformers' side of the speech families: what they share, and Whisper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from gpu_worker.encoders.base import Encoder
from tests.parity.published import Count, Item, sharpen
from tests.parity.speech import WINDOW, features, item, noise, real_speech
from tests.unit.encoders.tiny_checkpoints import raw_audio

SPECIAL = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)

#: Lengths, in samples, at which counts step: hops of 160, rows of two frames, tokens of two rows.
STEPS = (321, 480, 481, 640, 799, 800, 801, 16001, 31999, 32000, 32001)


class PublishedSpeech(ABC):
    """A feature extractor and a model."""

    family: str
    parts = 1

    def __init__(self, folder: Path, extractor: Any) -> None:
        self.folder, self.extractor = folder, extractor

    @abstractmethod
    def rows(self, one: Item) -> Tensor:
        """What the language model, or Whisper's decoder, is given."""

    @abstractmethod
    def count(self, extractor: Any, samples: int) -> Count:
        """By the published processor with this extractor."""

    def inputs(self, audio: Tensor, **settings: Any) -> dict[str, Tensor]:
        """As the published processors ask for them: padded to the extractor's length, with a mask."""
        made = self.extractor(
            audio.numpy(), sampling_rate=16000, return_attention_mask=True, return_tensors="pt", **settings
        )
        return {"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]}

    def items(self) -> list[Item]:
        """Speech of odd lengths, silence and noise."""
        spoken = [real_speech(samples) for samples in (321, 16001, 160 * 361, 200003, WINDOW)]
        return [item(audio) for audio in (*spoken, np.zeros(50000, np.float32), noise(100001))]

    def company(self) -> tuple[Item, list[list[Item]]]:
        """Noise next to two other clips: each pair of lengths twice, the second time with other contents."""
        lengths = [(40001, 200003), (64000, 31999)]
        crowds = [[item(make(n)) for n in pair] for pair in lengths for make in (real_speech, noise)]
        return item(noise(100001)), crowds

    def counts(self, number: int) -> Iterator[Count]:
        """Where lengths step, and random ones."""
        quick = quick_extractor(self.extractor)
        lengths = np.random.default_rng(12).integers(1, self.extractor.n_samples + 1, number - len(STEPS))
        for samples in (*STEPS, *lengths.tolist()):
            yield self.count(quick, samples)

    def mel(self, one: Item) -> Tensor:
        """All the extractor's frames, those of the silence behind the audio included."""
        return self.inputs(one[1])["input_features"][0]

    def own_mel(self, encoder: Encoder, one: Item) -> Tensor:
        """The same of ours."""
        return features(encoder, [one[1].numpy()])[0]


class PublishedWhisper(PublishedSpeech):
    """Whisper's encoder: every row of a window, silence included."""

    family = "whisper"

    def __init__(self, folder: Path, extractor: Any, model: Any) -> None:
        super().__init__(folder, extractor)
        self.encoder = model.model.encoder

    def rows(self, one: Item) -> Tensor:
        """``last_hidden_state`` of each window of 30 s, one after the other."""
        cuts = one[1].split(WINDOW)
        mel = torch.cat([self.inputs(cut)["input_features"] for cut in cuts])
        with torch.inference_mode():
            rows: Tensor = self.encoder(mel).last_hidden_state
        return rows.flatten(0, 1)

    def count(self, extractor: Any, samples: int) -> Count:
        """The mask tells the frames; rows are always those of the whole window."""
        made = extractor(np.zeros(samples, np.float32), sampling_rate=16000, return_attention_mask=True)
        return Count(raw=raw_audio(samples), tokens=1500, lengths=(int(made["attention_mask"].sum()),))


class PublishedHearer(PublishedWhisper):
    """A real Whisper, which takes a second a window: fewer audio clips, and one of three windows."""

    def items(self) -> list[Item]:
        """Speech, a window and a bit, silence and noise."""
        audios = [real_speech(200003), real_speech(WINDOW + 77777), np.zeros(4000, np.float32), noise(100001)]
        return [item(audio) for audio in audios]

    def company(self) -> tuple[Item, list[list[Item]]]:
        """Speech next to one other window."""
        return item(real_speech(200003)), [[item(real_speech(WINDOW))], [item(noise(100003))]]


def quick_extractor(extractor: Any) -> Any:
    """The same extractor with its masks and counts, and zeros instead of features."""
    quick = type(extractor)(feature_size=extractor.feature_size, chunk_length=extractor.chunk_length)
    zeros = np.zeros((1, extractor.feature_size, extractor.nb_max_frames), np.float32)
    quick._torch_extract_fbank_features = lambda _waves, _device: zeros
    return quick


def small_whisper(folder: Path, bins: int = 80) -> PublishedWhisper:
    """A small random checkpoint; large-v3 has 128 bins."""
    torch.manual_seed(2)
    layers = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = WhisperConfig(d_model=48, num_mel_bins=bins, vocab_size=100, **layers, **heads, **SPECIAL)
    model = WhisperForConditionalGeneration(config).eval()
    sharpen(model.model.encoder)
    extractor = WhisperFeatureExtractor(feature_size=bins)
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    return PublishedWhisper(folder, extractor, model)


def real_whisper(folder: Path) -> PublishedHearer:
    """whisper-tiny.en with its real weights."""
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return PublishedHearer(folder, WhisperFeatureExtractor.from_pretrained(folder), model)
