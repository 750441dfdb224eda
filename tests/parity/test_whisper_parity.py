"""whisper-tiny.en with its real weights: our encoder against WhisperFeatureExtractor and WhisperModel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperModel,
)

from gpu_worker.encoders.base import Encoder
from tests.unit.tiny_checkpoints import NO_OPTIONS, raw_audio

SPEECH = Path(__file__).parents[2] / "examples" / "media" / "speech.ogg"
WINDOW = 480000
TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)


@pytest.fixture(scope="module")
def reference(real_folders: dict[str, Path]) -> tuple[Any, Any]:
    folder = real_folders["whisper-tiny.en"]
    return (
        WhisperFeatureExtractor.from_pretrained(folder),
        WhisperModel.from_pretrained(folder, dtype=torch.float32).eval(),
    )


@pytest.fixture(scope="module")
def ours(real_folders: dict[str, Path], load: Callable[..., Encoder]) -> Encoder:
    return load("whisper", real_folders["whisper-tiny.en"])


def real_speech() -> np.ndarray:
    samples, rate = soundfile.read(SPEECH, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    wanted = np.arange(0, len(mono) / rate, 1 / 16000)
    return np.interp(wanted, np.arange(len(mono)) / rate, mono).astype(np.float32)


def sounds() -> dict[str, np.ndarray]:
    speech, random = real_speech(), np.random.default_rng(3)
    repeats = -(-(2 * WINDOW + 77777) // len(speech))
    return {
        "speech": speech[:WINDOW],
        "whole window": np.tile(speech, -(-WINDOW // len(speech)))[:WINDOW],
        "three windows": np.tile(speech, repeats)[: 2 * WINDOW + 77777],
        "one sample": np.float32([0.5]),
        "silence": np.zeros(4000, np.float32),
        "noise": (random.standard_normal(100001) * 0.3).astype(np.float32),
    }


def features(reference: tuple[Any, Any], sound: np.ndarray) -> Tensor:
    cuts = [sound[start : start + WINDOW] for start in range(0, len(sound), WINDOW)]
    extracted = [reference[0](cut, sampling_rate=16000, return_tensors="pt").input_features for cut in cuts]
    return torch.cat(extracted)


@pytest.mark.parametrize("name", sorted(sounds()))
def test_log_mel_is_equal(ours: Encoder, reference: tuple[Any, Any], name: str) -> None:
    sound = sounds()[name]
    plan = ours.plan(raw_audio(len(sound)), NO_OPTIONS)
    mel = ours.preprocess([torch.from_numpy(sound)], [plan]).tensors["mel"]
    wanted = features(reference, sound)
    assert mel.shape == wanted.shape
    assert float((mel - wanted).abs().max()) <= 1e-4


@pytest.mark.parametrize("name", sorted(sounds()))
def test_embeddings_are_equal(
    ours: Encoder, reference: tuple[Any, Any], encode: Any, relative: Any, name: str
) -> None:
    sound = sounds()[name]
    with torch.inference_mode():
        wanted = reference[1].encoder(features(reference, sound)).last_hidden_state.flatten(0, 1)
    got = encode(ours, [(raw_audio(len(sound)), torch.from_numpy(sound))])[0]
    assert relative(got, wanted) <= 1e-4


def test_large_v3s_128_bins_are_equal(
    tmp_path: Path, load: Callable[..., Encoder], encode: Any, relative: Any
) -> None:
    torch.manual_seed(2)
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    layers = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    config = WhisperConfig(d_model=48, num_mel_bins=128, vocab_size=100, **layers, **heads, **TOKENS)
    model = WhisperForConditionalGeneration(config).eval()
    extractor = WhisperFeatureExtractor(feature_size=128)
    model.save_pretrained(tmp_path)
    extractor.save_pretrained(tmp_path)
    sound = real_speech()[:WINDOW]
    with torch.inference_mode():
        wanted = model.model.encoder(features((extractor, model), sound)).last_hidden_state.flatten(0, 1)
    got = encode(load("whisper", tmp_path), [(raw_audio(len(sound)), torch.from_numpy(sound))])[0]
    assert relative(got, wanted) <= 1e-4


def test_valid_lengths_are_the_feature_extractors(ours: Encoder, reference: tuple[Any, Any]) -> None:
    for samples in (1, 159, 160, 161, 47771, 479999, 480000):
        mask = reference[0](
            np.ones(samples, np.float32), sampling_rate=16000, return_attention_mask=True, return_tensors="np"
        ).attention_mask
        plan = ours.plan(raw_audio(samples), NO_OPTIONS)
        assert plan.facts.audio_feature_lengths == (int(mask.sum()),)


def test_bfloat16_points_the_same_way(
    real_folders: dict[str, Path], load: Callable[..., Encoder], ours: Encoder, encode: Any, alike: Any
) -> None:
    half = load("whisper", real_folders["whisper-tiny.en"], "bfloat16")
    sound = real_speech()[:WINDOW]
    item = (raw_audio(len(sound)), torch.from_numpy(sound))
    assert alike(encode(half, [item])[0], encode(ours, [item])[0]) >= 0.999


def test_packed_equals_single(ours: Encoder, encode: Any) -> None:
    items = [(raw_audio(len(sound)), torch.from_numpy(sound)) for sound in sounds().values()]
    for packed, item in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [item])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)
