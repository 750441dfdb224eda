"""What every tier shares: each test carries the marker of the folder that it lies in."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
TIERS = {"unit", "contract", "integration", "hostile", "chaos", "gpu", "rules", "parity"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(ROOT).parts[0] if item.path.is_relative_to(ROOT) else ""
        if tier in TIERS:
            item.add_marker(tier)
