"""Preprocessing on a CUDA device is that of the processor, and the rows of both are alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import preprocess_checks
from tests.gpu.batches import FAMILIES, batch_of
from tests.gpu.site import cuda_site, twin_site

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_are_those_of_the_processor(family: str, tmp_path: Path) -> None:
    preprocess_checks.check_preprocess(cuda_site(), family, tmp_path)


def test_resized_pixels_are_equal() -> None:
    preprocess_checks.check_resize(cuda_site())


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_float32_are_those_of_the_processor(family: str, tmp_path: Path) -> None:
    """Convolutions may use TF32, whose products have 10 bits: hence not closer."""
    here, there = (site.encoder(family, tmp_path, dtype="float32") for site in (twin_site(), cuda_site()))
    units = 256 if here.card.family.startswith("qwen") else 2
    expected = here.forward(batch_of(here, units))
    rows = there.forward(batch_of(there, units)).cpu()
    torch.testing.assert_close(rows, expected, rtol=1e-2, atol=1e-2)
