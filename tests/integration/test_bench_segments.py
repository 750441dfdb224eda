"""`python -m bench.segments` runs as it is documented, and prints what it promises."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integration.transport_kit import ROOT


@pytest.mark.slow
def test_it_prints_its_ratios() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.segments", "--json", "--rounds", "1"], cwd=ROOT, check=False,
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {"cold_over_longer", "cold_over_known", "device_cold_over_longer", "cold_s"} <= printed.keys()
    assert all(printed[name] > 0 for name in ("cold_over_longer", "cold_over_known", "cold_s"))
