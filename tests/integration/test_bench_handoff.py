"""``python -m bench.handoff`` runs: both ways come to the same grids, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.transport_kit import ROOT

KEYS = {"image_wall_ratio", "image_cpu_ratio", "video_wall_ratio", "video_cpu_ratio"}


@pytest.mark.slow
def test_the_figures_are_measured() -> None:
    """Figures of a loaded test machine say nothing, so only their presence and their kind are checked."""
    before = set(Path("/dev/shm").glob("epd-handoff-*"))
    done = subprocess.run(
        [sys.executable, "-m", "bench.handoff", "--json", "--rounds", "1", "--reads", "20", "--seconds", "2"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) >= KEYS
    assert all(figures[name] > 1 for name in KEYS)
    assert figures["video_handoff_bytes"] > figures["image_handoff_bytes"] > 300
    assert set(Path("/dev/shm").glob("epd-handoff-*")) == before
