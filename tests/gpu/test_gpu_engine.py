"""The engine on a CUDA device: copies on their own streams, captures, and a device that is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.gpu import engine_checks
from tests.gpu.batches import FAMILIES
from tests.gpu.site import cuda_site

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_item_has_the_rows_that_it_has_alone(family: str, captured: bool, tmp_path: Path) -> None:
    engine_checks.check_engine_rows(cuda_site(), family, tmp_path, captured=captured)


def test_a_full_device_fails_one_item_and_lives_on(tmp_path: Path) -> None:
    engine_checks.check_little_memory(cuda_site(), tmp_path)


@contextmanager
def waits_refused() -> Iterator[None]:
    """Torch raises on what waits for the device: reading a value, a copy from memory that is not pinned."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_on_the_path_waits_for_the_device(family: str, captured: bool, tmp_path: Path) -> None:
    engine_checks.check_engine_rows(
        cuda_site(), family, tmp_path, captured=captured, while_serving=waits_refused()
    )
