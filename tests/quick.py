"""Marks the parameters of a test that ``make test`` leaves to ``make slow``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[str], *kept: str) -> list[Any]:
    """All values as parameters; those that are not ``kept`` are slow."""
    values = list(values)
    assert set(kept) <= set(values), f"{kept} are not all among {values}"
    return [pytest.param(one, marks=() if one in kept else pytest.mark.slow) for one in values]
