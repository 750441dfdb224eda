"""``python -m tests.chaos [--seed N] [--short] [--only NAME ...]``: one JSON line a scenario."""

from __future__ import annotations

import argparse
import sys

from tests.chaos.report import Line
from tests.chaos.runner import run_all
from tests.chaos.scenarios.catalogue import ALL


def main() -> int:
    """Run what was asked for; 1 when anything was lost, duplicated or broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="fewer faults, about a minute in all")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[one.name for one in ALL])
    asked = parser.parse_args()
    scenarios = [one for one in ALL if not asked.only or one.name in asked.only]
    return 0 if run_all(scenarios, seed=asked.seed, short=asked.short, tell=_tell) else 1


def _tell(line: Line) -> None:
    print(line.as_json(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
