"""``python -m bench.encoder.smoke [--write]``: key ratios against the committed ones, in under 90 seconds.

Each is a median of three rounds or more, and better when it is larger. Machines differ, so the status is 1
only if one is below half of its committed value. ``--write`` replaces the committed values.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.ceiling.measurement import measure as measure_ceiling
from bench.encoder.cold import compare
from bench.encoder.result import progress_bar, table

_COMMITTED = Path(__file__).with_name("smoke.json")
_LEAST = 0.5  #: of the committed value
_IMAGES = 96
_ROUNDS = 3
_MESSAGES = 1500


def measure() -> dict[str, float]:
    """The ratios by name. The device is simulated, and costs nothing."""
    with progress_bar("smoke", 2 * (_ROUNDS + 1) + 2) as step:
        rounds = compare(_IMAGES, _ROUNDS, step)
        step("the GPU worker's ceiling")
        ceiling = measure_ceiling(_MESSAGES)
    return {
        "cold_over_plain": round(rounds["four"].over_plain, 3),
        "cold_over_plain_single": round(rounds["single"].over_plain, 3),
        "plain_cpu_over_cold": round(1 / rounds["four"].cpu_over_plain, 3),
        "ceiling_over_stock": round(ceiling.ratio, 2),
    }


def too_low(found: Mapping[str, float], committed: Mapping[str, float]) -> list[str]:
    """The names of ratios below half of their committed values. A ratio without one is none of them."""
    return [name for name, value in found.items() if value < _LEAST * committed.get(name, 0.0)]


def main() -> None:
    """Measure, print, and compare or write."""
    parser = argparse.ArgumentParser(prog="python -m bench.encoder.smoke", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the committed values")
    options = parser.parse_args()
    committed: dict[str, float] = json.loads(_COMMITTED.read_text(encoding="utf-8"))
    found = measure()
    if options.write:
        _COMMITTED.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    low = too_low(found, committed)
    rows = [
        (name, value, committed.get(name, ""), "too low" if name in low else "")
        for name, value in found.items()
    ]
    sys.stdout.write(f"simulated device\n{table(('ratio', 'found', 'committed', ''), rows)}")
    sys.exit(1 if low and not options.write else 0)


if __name__ == "__main__":
    main()
