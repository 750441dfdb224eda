"""What comes out of the whole pipeline equals transformers' own processor and model on the same file.

The figures are printed (``pytest -rP -k parity``), so that a report can quote them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from transformers import (
    BitImageProcessor,
    Dinov2Model,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from epd.client import Client
from epd.contracts.responses import ItemAnswer
from tests.paths import MEDIA, WEIGHTS

Rows = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

PHOTO = next(iter(sorted(MEDIA.glob("*.jpg"))))


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen kHz mono, so that no resampler stands between the two sides."""
    generator = np.random.default_rng(7)
    tone = np.sin(np.arange(16_000 * 3) * 2 * np.pi * 220 / 16_000) * 0.3
    path = tmp_path_factory.mktemp("sound") / "tone.wav"
    soundfile.write(path, tone + generator.normal(0, 0.01, tone.shape), 16_000, subtype="PCM_16")
    return path


def encode_one(client: Client, path: Path, model: str) -> tuple[ItemAnswer, Rows]:
    job = client.encode([path], model=model)
    item = job.items[0]
    assert item.embedding is not None, item.error
    return item, client.embedding(item.embedding.key)


def relative_error(found: Rows, expected: Rows) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def least_cosine(found: Rows, expected: Rows) -> float:
    products = (found * expected).sum(-1)
    return float((products / np.linalg.norm(found, axis=-1) / np.linalg.norm(expected, axis=-1)).min())


@torch.inference_mode()
def dinov2_reference(path: Path) -> Rows:
    folder = WEIGHTS / "dinov2-small"
    pixels = BitImageProcessor.from_pretrained(folder)(Image.open(path).convert("RGB"), return_tensors="pt")
    return Dinov2Model.from_pretrained(folder).eval()(**pixels).last_hidden_state[0].numpy()


@torch.inference_mode()
def whisper_reference(path: Path) -> Rows:
    folder = WEIGHTS / "whisper-tiny.en"
    samples, rate = soundfile.read(path, dtype="float32")
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(samples, sampling_rate=rate, return_tensors="pt").input_features
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    return model.model.encoder(features).last_hidden_state[0].numpy()


@torch.inference_mode()
def qwen_reference(folder: Path, path: Path) -> tuple[Rows, tuple[int, ...]]:
    processor = Qwen2VLImageProcessor.from_pretrained(folder)
    inputs = processor(Image.open(path).convert("RGB"), return_tensors="pt")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    rows = model.model.visual(inputs.pixel_values, grid_thw=inputs.image_grid_thw).pooler_output
    return rows.numpy(), tuple(inputs.image_grid_thw[0].tolist())


@pytest.mark.parametrize("model", ["real", "real-bf16"], ids=["fp32", "bf16"])
def test_parity_of_an_image_through_dinov2(
    client: Client, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    item, found = encode_one(client, PHOTO, model)
    check("dinov2", model, found, dinov2_reference(PHOTO), capsys)
    assert item.metadata is not None
    assert item.metadata.token_count == 257


@pytest.mark.parametrize("model", ["real", "real-bf16"], ids=["fp32", "bf16"])
def test_parity_of_audio_through_whisper(
    client: Client, speech: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    item, found = encode_one(client, speech, model)
    check("whisper", model, found, whisper_reference(speech), capsys)
    assert item.metadata is not None
    assert item.metadata.token_count == 1500
    assert item.metadata.audio_feature_lengths == (300,)


@pytest.mark.parametrize("model", ["qwen", "qwen-bf16"], ids=["fp32", "bf16"])
def test_parity_of_an_image_through_qwen2_5_vl(
    client: Client, checkpoints: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    item, found = encode_one(client, PHOTO, model)
    expected, grid = qwen_reference(checkpoints / "qwen", PHOTO)
    check("qwen2_5_vl", model, found, expected, capsys)
    assert item.metadata is not None
    assert item.metadata.grid_thw == grid


def check(family: str, model: str, found: Rows, expected: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    error, cosine = relative_error(found, expected), least_cosine(found, expected)
    with capsys.disabled():
        print(f"\nparity {family} {model}: fp32-relative error {error:.2e}, least cosine {cosine:.6f}")
    if model.endswith("bf16"):
        assert cosine >= 0.999
    else:
        assert error <= 1e-3
