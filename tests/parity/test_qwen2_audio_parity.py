"""Family qwen2_audio against transformers: long clips, counts where they step, features at odd lengths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu_worker.encoders.base import Encoder
from tests.parity.published import encode, load_ours
from tests.parity.published_qwen_audio import TEXT, PublishedQwen2Audio
from tests.parity.row_figures import relative_error
from tests.parity.speech import ODD_LENGTHS, WINDOW, agree_on_count, features, item, real_speech
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, raw_audio


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> PublishedQwen2Audio:
    folder: Path = tmp_path_factory.mktemp("qwen2_audio")
    return PublishedQwen2Audio(folder)


@pytest.fixture(scope="module")
def ours(reference: PublishedQwen2Audio) -> Encoder:
    return load_ours("qwen2_audio", reference.folder)


@pytest.mark.parametrize("samples", [160 * 101, WINDOW - 37], ids=["odd rows", "nearly whole"])
def test_rows_are_what_the_language_model_is_given(
    ours: Encoder, reference: PublishedQwen2Audio, samples: int
) -> None:
    audio = item(real_speech(samples))
    got = encode(ours, [audio])[0]
    assert got.shape[1] == ours.card.hidden == TEXT["hidden_size"]
    assert relative_error(got, reference.rows(audio)) <= 1e-4


def test_a_long_audio_is_its_windows(ours: Encoder, reference: PublishedQwen2Audio) -> None:
    """The published processor drops what is behind 30 s."""
    audio = real_speech(WINDOW + 77777)
    plan = ours.plan(raw_audio(len(audio)), NO_OPTIONS)
    assert plan.facts.audio_feature_lengths == (3000, 487)
    wanted = [reference.rows(item(part)) for part in (audio[:WINDOW], audio[WINDOW:])]
    assert plan.tokens == sum(map(len, wanted))
    assert relative_error(encode(ours, [item(audio)])[0], torch.cat(wanted)) <= 1e-4


def test_counts_where_lengths_step(ours: Encoder, reference: PublishedQwen2Audio) -> None:
    """By the published processor with its real extractor; least and refused lengths included."""
    for samples in (*ODD_LENGTHS, 320, 321, 480, 481, WINDOW):
        agree_on_count(ours, reference.count(reference.extractor, samples))


@pytest.mark.parametrize("samples", [n for n in ODD_LENGTHS if n > 320])
def test_features_are_the_extractors(ours: Encoder, reference: PublishedQwen2Audio, samples: int) -> None:
    audio = real_speech(samples)
    wanted = reference.inputs(torch.from_numpy(audio))["input_features"]
    assert float((features(ours, [audio]) - wanted).abs().max()) <= 1e-4
