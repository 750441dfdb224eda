"""Every bar of ``python -m tests.parity``, on every family and on the real weights, by the same functions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu_worker.encoders.base import Capturable
from gpu_worker.encoders.registry import FAMILIES
from tests.parity.comparison import BARS, Comparison, near_enough
from tests.parity.media import ROOT
from tests.parity.row_figures import bucket_figures
from tests.parity.subjects import SUBJECTS
from tests.quick import quick

#: As many sizes as ``python -m tests.parity`` takes, and fewer images.
SIZES = 500
#: The real checkpoints follow the rules of their families' small ones.
SIZES_OF_REAL = 40
IMAGES = 12
#: One of each kind: packed patches in windows, an image tower, windows of speech, packed speech.
KINDS = ("qwen2_5_vl", "dinov2", "whisper", "qwen2_audio")


@pytest.fixture(scope="module", params=quick(SUBJECTS, *KINDS))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp(request.param)
    return Comparison(SUBJECTS[request.param](folder))


def test_every_family_is_measured() -> None:
    assert FAMILIES.keys() <= SUBJECTS.keys()


def test_float32_rows_are_transformers(both: Comparison) -> None:
    assert both.fp32_error() <= BARS.fp32_error


def test_bfloat16_points_the_same_way(both: Comparison) -> None:
    assert both.bf16_cosine() >= BARS.bf16_cosine


def test_packed_equals_single(both: Comparison) -> None:
    assert both.packed_difference() <= BARS.packed_difference


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_one_bucket_the_bits_are_those_of_any_company(both: Comparison, dtype: str) -> None:
    encoder = both.ours if dtype == "float32" else both.half
    figures = bucket_figures(both.published, encoder)
    assert figures.equal
    assert figures.batches >= 4 * figures.buckets
    if isinstance(encoder, Capturable):
        assert figures.replayed >= figures.batches


def test_sizes_are_the_published_ones(both: Comparison) -> None:
    number = SIZES_OF_REAL if both.published.folder.is_relative_to(ROOT) else SIZES
    figures = both.sizes(number)
    assert figures.tried >= number
    assert (figures.mismatches, figures.first) == (0, "")


def test_pixels_or_log_mel_are_the_published_ones(both: Comparison) -> None:
    pixels, mel = both.pixels(IMAGES), both.mel_difference()
    assert (pixels is None) != (mel is None)
    assert pixels is None or near_enough(pixels)
    assert mel is None or mel <= BARS.mel_difference
