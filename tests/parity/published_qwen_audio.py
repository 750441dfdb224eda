"""transformers' side of Qwen2-Audio, and of the thinker of Qwen2.5-Omni."""

from __future__ import annotations

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
    WhisperFeatureExtractor,
)

from gpu_worker.encoders.base import Encoder
from tests.parity.published import Count, Item, sharpen
from tests.parity.published_speech import PublishedSpeech
from tests.parity.speech import features, item, noise, real_speech
from tests.unit.encoders.tiny_checkpoints import raw_audio

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
        """The processor's own way from an audio clip to placeholders."""
        extractor.fetch_audio = lambda audio: audio
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
        audios = [*map(real_speech, lengths), np.zeros(50000, np.float32), noise(100001)]
        return [item(audio) for audio in audios]

    def count(self, extractor: Any, samples: int) -> Count:
        """The processor's own way from an audio clip to placeholders."""
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
        """Chunk by chunk, without what is behind the audio."""
        chunks = features(encoder, [one[1].numpy()])
        return chunks.transpose(0, 1).flatten(1)[:, : -(-len(one[1]) // 160)]


def processor_of(extractor: Any) -> Any:
    """As much of a published processor as its way from audio clips to placeholders uses."""
    return SimpleNamespace(feature_extractor=extractor, replace_audio_token=lambda *_args, **_more: "")
