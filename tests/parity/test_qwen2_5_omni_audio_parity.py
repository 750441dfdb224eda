"""Family qwen2_5_omni_audio against transformers' thinker: other chunks, long clips, counts, features."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu_worker.encoders.base import Encoder
from tests.parity.published import encode, load_ours
from tests.parity.published_qwen_audio import PublishedOmni
from tests.parity.row_figures import relative_error
from tests.parity.speech import ODD_LENGTHS, agree_on_count, features, item, noise, real_speech
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, raw_audio


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> PublishedOmni:
    folder: Path = tmp_path_factory.mktemp("omni")
    return PublishedOmni(folder)


@pytest.fixture(scope="module")
def ours(reference: PublishedOmni) -> Encoder:
    return load_ours("qwen2_5_omni_audio", reference.folder)


@pytest.mark.parametrize("n_window", [1, 7, 25])
def test_other_chunks_are_followed(tmp_path: Path, n_window: int) -> None:
    """With odd rows in a chunk, pairs of rows lie across chunks."""
    other = PublishedOmni(tmp_path, n_window=n_window)
    audios = [item(real_speech(20003)), item(noise(4001))]
    for rows, audio in zip(encode(load_ours("qwen2_5_omni_audio", tmp_path), audios), audios, strict=True):
        assert relative_error(rows, other.rows(audio)) <= 1e-4


def test_nothing_is_cut(ours: Encoder, reference: PublishedOmni) -> None:
    """An audio clip beyond the extractor's length is what the extractor gives without truncation."""
    audio = real_speech(reference.extractor.n_samples + 77760)
    plan = ours.plan(raw_audio(len(audio)), NO_OPTIONS)
    assert plan.facts.audio_feature_lengths == (len(audio) // 160,)
    assert plan.tokens == len(audio) // 640
    wanted = reference.rows(item(audio), truncation=False)
    assert relative_error(encode(ours, [item(audio)])[0], wanted) <= 1e-4
    odd = ours.plan(raw_audio(len(audio) + 1), NO_OPTIONS)
    assert odd.facts.audio_feature_lengths == (len(audio) // 160 + 1,)


def test_counts_where_lengths_step(ours: Encoder, reference: PublishedOmni) -> None:
    """By the published processor with its real extractor; least and refused lengths included."""
    for samples in (*ODD_LENGTHS, 320, 321, reference.extractor.n_samples):
        agree_on_count(ours, reference.count(reference.extractor, samples))


def test_features_are_the_extractors(ours: Encoder, reference: PublishedOmni) -> None:
    """All odd lengths in one batch: chunk by chunk as the extractor's valid frames, then zeros."""
    whole = reference.extractor.n_samples
    audios = [real_speech(samples) for samples in (*ODD_LENGTHS, whole - 1, whole) if samples > 320]
    chunks = features(ours, audios)
    for audio in audios:
        wanted = reference.mel(item(audio))
        frames = wanted.shape[1]
        count = -(-frames // 200)
        got = chunks[:count].transpose(0, 1).flatten(1)
        assert float((got[:, :frames] - wanted).abs().max()) <= 1e-4
        assert not got[:, frames:].any()
        chunks = chunks[count:]
    assert len(chunks) == 0
    assert torch.isfinite(wanted).all()
