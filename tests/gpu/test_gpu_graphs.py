"""Captured CUDA graphs give the eager rows: at every edge of a bucket, on dirty buffers, in every order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import graph_checks
from tests.gpu.batches import FAMILIES
from tests.gpu.site import cuda_site

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("family", FAMILIES)
def test_bucket_edges(family: str, tmp_path: Path) -> None:
    graph_checks.check_bucket_edges(cuda_site(), family, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_nan_comes_through_any_pair_of_buckets(family: str, tmp_path: Path) -> None:
    graph_checks.check_every_pair(cuda_site(), family, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_item_is_bit_equal_in_any_crowd(family: str, tmp_path: Path) -> None:
    graph_checks.check_neighbours(cuda_site(), family, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_kept(family: str, tmp_path: Path) -> None:
    graph_checks.check_rows_are_kept(cuda_site(), family, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_calibrated_runners_give_the_eager_rows(family: str, tmp_path: Path) -> None:
    graph_checks.check_calibrated(cuda_site(), family, tmp_path)
