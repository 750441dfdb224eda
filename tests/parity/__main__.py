"""``python -m tests.parity [--json] [--only NAME ...]``: parity with transformers; 1: a bar is missed."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from tests.parity.comparison import BARS, ParityFigures, measure
from tests.parity.subjects import SUBJECTS
from tests.parity.table import table_of


def main() -> int:
    """Measure every checkpoint, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(SUBJECTS))
    parser.add_argument("--sizes", type=int, default=500, help="random sizes of each kind of media")
    parser.add_argument("--images", type=int, default=60, help="images whose pixels are compared")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    started = time.process_time()
    figures = {name: _measured(name, asked) for name in asked.only or SUBJECTS}
    missed = {name: one.missed() for name, one in figures.items() if one.missed()}
    summary: dict[str, object] = {"transformers": transformers.__version__, "torch": torch.__version__}
    summary |= {"threads": asked.threads, "cpu_seconds": round(time.process_time() - started, 1)}
    if asked.json:
        summary |= {"bars": asdict(BARS), "missed": missed}
        print(json.dumps(summary | {"figures": {name: asdict(one) for name, one in figures.items()}}))
    else:
        print(table_of(figures))
        print("\n" + ", ".join(f"{name} {value}" for name, value in summary.items()))
    for name, bars in missed.items():
        print(f"{name} misses {', '.join(bars)}", file=sys.stderr)
    return 1 if missed else 0


def _measured(name: str, asked: argparse.Namespace) -> ParityFigures:
    with tempfile.TemporaryDirectory(prefix="epd-parity-") as folder:
        started = time.perf_counter()
        figures = measure(SUBJECTS[name](Path(folder)), sizes=asked.sizes, images=asked.images)
        print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        return figures


if __name__ == "__main__":
    sys.exit(main())
