"""``python -m tests.chaos [--seed N] [--short] [--only NAME ...]``: one JSON line a scenario."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tests.chaos.report import Line
from tests.chaos.runner import run_all
from tests.chaos.scenarios.catalogue import ALL


def main() -> int:
    """Run what was asked for; 1 when anything was lost, duplicated or broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="fewer faults, about a minute in all")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[one.name for one in ALL])
    parser.add_argument("--verbose", action="store_true", help="tell on standard error what is done")
    parser.add_argument("--keep", type=Path, help="a folder for logs and data, which stays")
    asked = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("tests.chaos").setLevel(logging.INFO if asked.verbose else logging.WARNING)
    wanted = asked.only or [one.name for one in ALL if one.in_short or not asked.short]
    scenarios = [one for one in ALL if one.name in wanted]
    return 0 if run_all(scenarios, seed=asked.seed, short=asked.short, tell=_tell, keep=asked.keep) else 1


def _tell(line: Line) -> None:
    print(line.as_json(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
