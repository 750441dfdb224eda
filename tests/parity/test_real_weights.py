"""The converted demo weights load in transformers without a gap, and do what such models do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from demo.results import rank, transcribe, word_error_rate
from demo.samples import AUDIO, CLIP, MEDIA, QUERY, reference_texts
from demo.weights.ensure import ensure_weights

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    return ensure_weights(ROOT / ".epd" / "models", say=print)


def _loaded(kind: Any, folder: Path) -> Any:
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert {name: list(found) for name, found in info.items() if found} == {}
    return model.eval()


def test_dinov2_finds_the_cat(folders: dict[str, Path]) -> None:
    model = _loaded(transformers.Dinov2Model, folders["dinov2-small"])
    processor = transformers.AutoImageProcessor.from_pretrained(folders["dinov2-small"], backend="pil")
    rows = {}
    for path in sorted(MEDIA.glob("*.jpg")):
        pixels = processor(Image.open(path), return_tensors="pt").pixel_values
        assert pixels.shape == (1, 3, 224, 224)
        with torch.inference_mode():
            rows[path.name] = model(pixels).last_hidden_state[0].numpy()
    assert rows[QUERY].shape == (257, 384)
    ranked = rank(rows.pop(QUERY), rows)
    assert ranked[0][0] == "cat.jpg"
    assert ranked[0][1] > ranked[1][1] + 0.2


@pytest.mark.parametrize("name", [CLIP, AUDIO])
def test_whisper_hears_the_words(folders: dict[str, Path], name: str) -> None:
    folder = folders["whisper-tiny.en"]
    model = _loaded(transformers.WhisperForConditionalGeneration, folder)
    features = transformers.AutoFeatureExtractor.from_pretrained(folder)
    wave = features(_audio(MEDIA / name), sampling_rate=16_000, return_tensors="pt").input_features
    with torch.inference_mode():
        embedding = model.model.encoder(wave).last_hidden_state[0].numpy()
    assert embedding.shape == (1500, 384)
    assert word_error_rate(reference_texts()[name], transcribe(embedding, folder)) <= 0.1


def _audio(path: Path) -> np.ndarray:
    resampler = av.AudioResampler("flt", "mono", 16_000)
    with av.open(str(path)) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
        return np.concatenate([frame.to_ndarray()[0] for frame in frames])
