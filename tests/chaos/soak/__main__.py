"""``python -m tests.chaos.soak [--minutes N] [--seed N]``: steady load, and whether anything grows.

Jobs, embeddings and memos live for a few minutes here instead of hours or days, so that they reach their
steady number within the first half of the run; the figures of the second half are then expected to be flat.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.chaos.checkpoints import write_config
from tests.chaos.soak.run import soak
from tests.chaos.soak.slope import trends

#: With fewer minutes than this a slope says little; the figures are shown, and only large growth fails.
_SHORTEST = 0.5


def main() -> int:
    """Soak, print the figures, and return 1 where one is not flat or anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.minutes < _SHORTEST:
        parser.error(f"--minutes: at least {_SHORTEST:g}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="epd-soak-") as name:
        folder = Path(name)
        result = soak(write_config(folder), folder / "world", seconds=60 * asked.minutes, seed=asked.seed)
    found = trends(result.samples)
    growing = [name for name, trend in found.items() if not trend.is_flat]
    report = {
        "minutes": round((time.monotonic() - started) / 60, 2),
        "samples": len(result.samples),
        "submitted": result.submitted,
        "completed": result.completed,
        "failed": result.failed,
        "unfinished": result.unfinished,
        "growing": growing,
        "figures": {name: asdict(trend) for name, trend in found.items()},
    }
    print(json.dumps(report), flush=True)
    return 1 if growing or result.unfinished or result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
