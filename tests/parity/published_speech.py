"""transformers' side of the speech families: Whisper, Qwen2-Audio, and the thinker of Qwen2.5-Omni."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from gpu_worker.encoders.base import Encoder
from tests.parity.published import Count, Item, sharpen
from tests.parity.speech import WINDOW, features, item, noise, real_speech
from tests.unit.tiny_checkpoints import raw_audio

AUDIO_TOKEN = 7
TEXT = {
    "hidden_size": 40,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}
THINKER_TEXT = TEXT | {
    "rope_parameters": {"rope_type": "default", "mrope_section": [4, 3, 3], "rope_theta": 1e6}
}
AUDIO = {"d_model": 48, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 96}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 40}
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

    def inputs(self, sound: Tensor, **settings: Any) -> dict[str, Tensor]:
        """As the published processors ask for them: padded to the extractor's length, with a mask."""
        made = self.extractor(
            sound.numpy(), sampling_rate=16000, return_attention_mask=True, return_tensors="pt", **settings
        )
        return {"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]}

    def items(self) -> list[Item]:
        """Speech of odd lengths, silence and noise."""
        spoken = [real_speech(samples) for samples in (321, 16001, 160 * 361, 200003, WINDOW)]
        return [item(sound) for sound in (*spoken, np.zeros(50000, np.float32), noise(100001))]

    def company(self) -> tuple[Item, list[list[Item]]]:
        """Noise beside two other sounds: each pair of lengths twice, with other contents the second time."""
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
        """All the extractor's frames, those of the silence behind the sound included."""
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


class PublishedQwen2Audio(PublishedSpeech):
    """A small random Qwen2-Audio."""

    family = "qwen2_audio"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, WhisperFeatureExtractor(feature_size=128))
        torch.manual_seed(5)
        config = Qwen2AudioConfig(audio_config=AUDIO, text_config=TEXT, audio_token_index=AUDIO_TOKEN)
        self.model = Qwen2AudioForConditionalGeneration(config).eval()
        sharpen(self.model.model.audio_tower)
        self.model.save_pretrained(folder)
        self.extractor.save_pretrained(folder)

    def rows(self, one: Item) -> Tensor:
        """What the whole model writes over as many placeholders as its processor would have put."""
        seen: list[Tensor] = []
        hook = self.model.model.language_model.register_forward_pre_hook(
            lambda _module, _args, given: seen.append(given["inputs_embeds"]), with_kwargs=True
        )
        given = self.inputs(one[1])
        tokens = self._tokens(given["feature_attention_mask"].sum())
        ids = torch.tensor([[1, *[AUDIO_TOKEN] * tokens, 2]])
        try:
            with torch.inference_mode():
                self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **given)
        finally:
            hook.remove()
        return seen[0][0, 1:-1]

    def count(self, extractor: Any, samples: int) -> Count:
        """The processor's own way from a sound to placeholders."""
        extractor.fetch_audio = lambda sound: sound
        stand_in = processor_of(extractor)
        silence = np.zeros(samples, np.float32)
        made, _ = Qwen2AudioProcessor._process_audio(stand_in, [silence], sampling_rate=16000)
        frames = int(made["feature_attention_mask"].sum())
        return Count(raw=raw_audio(samples), tokens=int(made["num_audio_tokens"][0]), lengths=(frames,))

    def _tokens(self, frames: Tensor) -> int:
        return int(self.model.model.audio_tower._get_feat_extract_output_lengths(frames)[1])


class PublishedOmni(PublishedSpeech):
    """A small random thinker of Qwen2.5-Omni.

    ``seconds`` that the extractor pads to: the published file says 300; 40 keeps the tests quick.
    """

    family = "qwen2_5_omni_audio"

    def __init__(self, folder: Path, *, n_window: int = 100, seconds: int = 40) -> None:
        super().__init__(folder, WhisperFeatureExtractor(feature_size=128, chunk_length=seconds))
        torch.manual_seed(6)
        audio = AUDIO | {"n_window": n_window, "output_dim": 40}
        config = Qwen2_5OmniThinkerConfig(audio_config=audio, vision_config=VISION, text_config=THINKER_TEXT)
        model = Qwen2_5OmniThinkerForConditionalGeneration(config).eval()
        self.thinker = model.model if hasattr(model, "model") else model
        sharpen(self.thinker.audio_tower)
        model.save_pretrained(folder)
        self.extractor.save_pretrained(folder)

    def rows(self, one: Item, **settings: Any) -> Tensor:
        """What the thinker is given; ``settings`` go to the extractor."""
        given = self.inputs(one[1], **settings)
        with torch.inference_mode():
            rows: Tensor = self.thinker.get_audio_features(**given).last_hidden_state
        return rows

    def items(self) -> list[Item]:
        """Speech around the ends of chunks and past 30 s, silence and noise."""
        lengths = (321, 32000, 32001, 160 * 361, 200003, 500001, self.extractor.n_samples)
        sounds = [*map(real_speech, lengths), np.zeros(50000, np.float32), noise(100001)]
        return [item(sound) for sound in sounds]

    def count(self, extractor: Any, samples: int) -> Count:
        """The processor's own way from a sound to placeholders."""
        stand_in = processor_of(extractor)
        settings = {"sampling_rate": 16000, "return_attention_mask": True, "return_tensors": "pt"}
        silence = np.zeros(samples, np.float32)
        made, _ = Qwen2_5OmniProcessor._process_audio(stand_in, [silence], **settings)
        frames = int(made["feature_attention_mask"].sum())
        return Count(raw=raw_audio(samples), tokens=int(made["num_audio_tokens"][0]), lengths=(frames,))

    def mel(self, one: Item) -> Tensor:
        """Valid frames only."""
        given = self.inputs(one[1])
        return given["input_features"][0][:, given["feature_attention_mask"][0].bool()]

    def own_mel(self, encoder: Encoder, one: Item) -> Tensor:
        """Chunk by chunk, without what is behind the sound."""
        chunks = features(encoder, [one[1].numpy()])
        return chunks.transpose(0, 1).flatten(1)[:, : -(-len(one[1]) // 160)]


class PublishedHearer(PublishedWhisper):
    """A real Whisper, which takes a second a window: fewer sounds, and one of three windows."""

    def items(self) -> list[Item]:
        """Speech, a window and a bit, silence and noise."""
        sounds = [real_speech(200003), real_speech(WINDOW + 77777), np.zeros(4000, np.float32), noise(100001)]
        return [item(sound) for sound in sounds]

    def company(self) -> tuple[Item, list[list[Item]]]:
        """Speech beside one other window."""
        return item(real_speech(200003)), [[item(real_speech(WINDOW))], [item(noise(100003))]]


def quick_extractor(extractor: Any) -> Any:
    """The same extractor with its masks and counts, and zeros instead of features."""
    quick = type(extractor)(feature_size=extractor.feature_size, chunk_length=extractor.chunk_length)
    zeros = np.zeros((1, extractor.feature_size, extractor.nb_max_frames), np.float32)
    quick._torch_extract_fbank_features = lambda _waves, _device: zeros
    return quick


def processor_of(extractor: Any) -> Any:
    """As much of a published processor as its way from sounds to placeholders uses."""
    return SimpleNamespace(feature_extractor=extractor, replace_audio_token=lambda *_args, **_more: "")


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
