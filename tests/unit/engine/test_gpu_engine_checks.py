"""The engine and preprocessing checks of tests/gpu, on the processor: a check that nobody runs is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import engine_checks, preprocess_checks
from tests.gpu.batches import FAMILIES
from tests.gpu.site import twin_site
from tests.quick import quick


def test_engine_rows_eagerly(tmp_path: Path) -> None:
    engine_checks.check_engine_rows(twin_site(), "dinov2", tmp_path, captured=False)


@pytest.mark.parametrize("family", quick(["qwen2_5_vl", "whisper"], "qwen2_5_vl"))
def test_engine_rows_captured(family: str, tmp_path: Path) -> None:
    engine_checks.check_engine_rows(twin_site(), family, tmp_path, captured=True)


def test_engine_rows_in_the_dtype_of_a_gpu(tmp_path: Path) -> None:
    engine_checks.check_engine_rows(twin_site("bfloat16"), "qwen3_vl", tmp_path, captured=True)


def test_little_memory(tmp_path: Path) -> None:
    engine_checks.check_little_memory(twin_site(), tmp_path)


@pytest.mark.parametrize("family", quick(FAMILIES, "whisper", "dinov2", "qwen2_5_vl"))
def test_preprocess(family: str, tmp_path: Path) -> None:
    preprocess_checks.check_preprocess(twin_site(), family, tmp_path)


def test_resize() -> None:
    preprocess_checks.check_resize(twin_site())
