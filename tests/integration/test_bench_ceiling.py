"""``python -m bench.ceiling`` runs, and every message that it counts gave an embedding."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.integration.transport_kit import ROOT


def test_the_ceiling_is_measured() -> None:
    """Figures of a loaded test machine say nothing, so only their presence is checked."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.ceiling", "--json", "--messages", "100"], cwd=ROOT, check=False,
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) == {"epd_per_s", "stock_per_s", "ratio"}
    assert all(value > 0 for value in figures.values())
