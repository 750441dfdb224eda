"""Family qwen2_5_omni_audio against transformers' thinker: features, counts and rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from gpu_worker.encoders.base import Encoder
from tests.parity.speech import ODD_LENGTHS, Encode, agree_on_counts, features, item, noise, real_speech
from tests.unit.tiny_checkpoints import NO_OPTIONS, raw_audio

TEXT = {
    "hidden_size": 40,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "rope_parameters": {"rope_type": "default", "mrope_section": [4, 3, 3], "rope_theta": 1e6},
}
AUDIO = {
    "d_model": 48,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "output_dim": 40,
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 40}
#: Seconds that the extractor pads to. The published file says 300; 40 keeps the tests quick.
SECONDS = 40
WINDOW = SECONDS * 16000


class Reference:
    """The published feature extractor and a small random thinker."""

    def __init__(self, folder: Path, n_window: int) -> None:
        torch.manual_seed(6)
        audio = AUDIO | {"n_window": n_window}
        config = Qwen2_5OmniThinkerConfig(audio_config=audio, vision_config=VISION, text_config=TEXT)
        model = Qwen2_5OmniThinkerForConditionalGeneration(config).eval()
        self.thinker = model.model if hasattr(model, "model") else model
        # The initialiser's 0.02 leaves attention nearly flat; wider weights make its windows matter.
        with torch.no_grad():
            for name, value in self.thinker.audio_tower.named_parameters():
                if name.endswith("weight") and value.dim() == 2:
                    value.mul_(6.0)
        self.extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=SECONDS)
        model.save_pretrained(folder)
        self.extractor.save_pretrained(folder)

    def inputs(self, sound: np.ndarray, **settings: Any) -> dict[str, Tensor]:
        made = self.extractor(
            sound, sampling_rate=16000, return_attention_mask=True, return_tensors="pt", **settings
        )
        return {
            "input_features": made["input_features"],
            "feature_attention_mask": made["attention_mask"],
        }

    def rows(self, sound: np.ndarray, **settings: Any) -> Tensor:
        with torch.inference_mode():
            given = self.inputs(sound, **settings)
            return self.thinker.get_audio_features(**given).last_hidden_state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("omni")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder, 100)


@pytest.fixture(scope="module")
def ours(reference: Reference, folder: Path, load: Callable[..., Encoder]) -> Encoder:
    return load("qwen2_5_omni_audio", folder)


SOUNDS: dict[str, Callable[[], np.ndarray]] = {
    "least": lambda: real_speech(321),
    "one chunk": lambda: real_speech(32000),
    "a chunk and a frame": lambda: real_speech(32001),
    "odd frames and rows": lambda: real_speech(160 * 361),
    "speech": lambda: real_speech(200003),
    "beyond 30 s": lambda: real_speech(500001),
    "whole length": lambda: real_speech(WINDOW),
    "silence": lambda: np.zeros(50000, np.float32),
    "noise": lambda: noise(100001),
}


@pytest.mark.parametrize("name", sorted(SOUNDS))
def test_rows_are_the_thinkers(
    ours: Encoder, reference: Reference, encode: Encode, relative: Any, name: str
) -> None:
    sound = SOUNDS[name]()
    got = encode(ours, [item(sound)])[0]
    assert got.shape[1] == ours.card.hidden == AUDIO["output_dim"]
    assert relative(got, reference.rows(sound)) <= 1e-4


@pytest.mark.parametrize("n_window", [1, 7, 25])
def test_other_chunks_are_followed(
    tmp_path: Path, load: Callable[..., Encoder], encode: Encode, relative: Any, n_window: int
) -> None:
    """With odd rows in a chunk, pairs of rows lie across chunks."""
    reference = Reference(tmp_path, n_window)
    sounds = [real_speech(20003), noise(4001)]
    got = encode(load("qwen2_5_omni_audio", tmp_path), [item(sound) for sound in sounds])
    for rows, sound in zip(got, sounds, strict=True):
        assert relative(rows, reference.rows(sound)) <= 1e-4


def test_nothing_is_cut(ours: Encoder, reference: Reference, encode: Encode, relative: Any) -> None:
    """A sound beyond the extractor's length is what the extractor gives when told not to truncate."""
    sound = real_speech(WINDOW + 77760)
    plan = ours.plan(raw_audio(len(sound)), NO_OPTIONS)
    assert plan.facts.audio_feature_lengths == (len(sound) // 160,)
    assert plan.tokens == len(sound) // 640
    wanted = reference.rows(sound, truncation=False)
    assert relative(encode(ours, [item(sound)])[0], wanted) <= 1e-4
    odd = ours.plan(raw_audio(len(sound) + 1), NO_OPTIONS)
    assert odd.facts.audio_feature_lengths == (len(sound) // 160 + 1,)


def test_counts_are_the_published_processors(ours: Encoder, reference: Reference) -> None:
    """The processor itself where lengths step, and its formula for 500 random lengths."""
    stand_in = SimpleNamespace(
        feature_extractor=reference.extractor, replace_audio_token=lambda *_args, **_more: ""
    )
    for samples in (*ODD_LENGTHS, 320, 321, WINDOW):
        made, _ = Qwen2_5OmniProcessor._process_audio(
            stand_in,
            [np.zeros(samples, np.float32)],
            sampling_rate=16000,
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = int(made["feature_attention_mask"].sum())
        agree_on_counts(ours, samples, frames, int(made["num_audio_tokens"][0]))
    for samples in np.random.default_rng(12).integers(1, WINDOW + 1, 500).tolist():
        tokens = Qwen2_5OmniProcessor._get_num_audio_tokens(stand_in, samples)
        agree_on_counts(ours, samples, -(-samples // 160), tokens)


def test_features_are_the_extractors(ours: Encoder, reference: Reference) -> None:
    """All odd lengths in one batch: chunk by chunk as the extractor's valid frames, then zeros."""
    sounds = [real_speech(samples) for samples in (*ODD_LENGTHS, WINDOW - 1, WINDOW) if samples > 320]
    chunks = features(ours, sounds)
    for sound in sounds:
        given = reference.inputs(sound)
        wanted = given["input_features"][0][:, given["feature_attention_mask"][0].bool()]
        frames = wanted.shape[1]
        count = -(-frames // 200)
        got = chunks[:count].transpose(0, 1).flatten(1)
        assert float((got[:, :frames] - wanted).abs().max()) <= 1e-4
        assert not got[:, frames:].any()
        chunks = chunks[count:]
    assert len(chunks) == 0


def test_bfloat16_points_the_same_way(
    folder: Path, ours: Encoder, load: Callable[..., Encoder], encode: Encode, alike: Any
) -> None:
    half = load("qwen2_5_omni_audio", folder, "bfloat16")
    for name in ("one chunk", "speech", "beyond 30 s"):
        one = item(SOUNDS[name]())
        assert alike(encode(half, [one])[0], encode(ours, [one])[0]) >= 0.999


def test_packed_equals_single(ours: Encoder, encode: Encode) -> None:
    items = [item(sound()) for sound in SOUNDS.values()]
    for packed, one in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [one])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)
