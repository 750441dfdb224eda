"""whisper-tiny.en with its real weights, and large-v3's bins: what the common bars do not look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.encoders.base import Encoder
from tests.parity.published import encode, load_ours
from tests.parity.published_speech import PublishedWhisper, real_whisper, small_whisper
from tests.parity.row_figures import relative_error
from tests.parity.speech import WINDOW, features, item, real_speech
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, raw_audio


@pytest.fixture(scope="module")
def reference(real_folders: dict[str, Path]) -> PublishedWhisper:
    return real_whisper(real_folders["whisper-tiny.en"])


@pytest.fixture(scope="module")
def ours(reference: PublishedWhisper) -> Encoder:
    return load_ours("whisper", reference.folder)


@pytest.mark.parametrize("samples", [1, 4001, WINDOW, 2 * WINDOW + 77777])
def test_log_mel_of_every_window_is_the_extractors(
    ours: Encoder, reference: PublishedWhisper, samples: int
) -> None:
    audio = real_speech(samples)
    cuts = torch.from_numpy(audio).split(WINDOW)
    wanted = torch.cat([reference.inputs(cut)["input_features"] for cut in cuts])
    mel = features(ours, [audio])
    assert mel.shape == wanted.shape
    assert float((mel - wanted).abs().max()) <= 1e-4


@pytest.mark.parametrize(
    "audio", [np.float32([0.5]), real_speech(WINDOW)], ids=["one sample", "whole window"]
)
def test_embeddings_at_the_ends_of_a_window(
    ours: Encoder, reference: PublishedWhisper, audio: np.ndarray
) -> None:
    assert relative_error(encode(ours, [item(audio)])[0], reference.rows(item(audio))) <= 1e-4


def test_large_v3s_128_bins_are_equal(tmp_path: Path) -> None:
    large = small_whisper(tmp_path, bins=128)
    audio = item(real_speech(200003))
    assert relative_error(encode(load_ours("whisper", tmp_path), [audio])[0], large.rows(audio)) <= 1e-4


def test_valid_lengths_are_the_feature_extractors(ours: Encoder, reference: PublishedWhisper) -> None:
    for samples in (1, 159, 160, 161, 47771, 479999, 480000):
        mask = reference.inputs(torch.ones(samples))["feature_attention_mask"]
        plan = ours.plan(raw_audio(samples), NO_OPTIONS)
        assert plan.facts.audio_feature_lengths == (int(mask.sum()),)
