"""``python -m bench.engine [--json] [--repeats N] [--dtype NAME]``: packing gain and overhead on this CPU."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.engine.measurement import TOGETHER, EngineFigures, measure
from gpu_worker.service.torch_threads import set_torch_threads

#: What the figures should reach.
LEAST_GAIN = 1.5
MOST_OVERHEAD = 0.15
_SHM = Path("/dev/shm")
_DIGITS = 4


def main() -> None:
    """Measure once, and print; the status is 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of measurements for each figure")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 is one a physical core")
    parser.add_argument("--dtype", default="auto", help="as in epd.toml; auto is what a worker chooses here")
    options = parser.parse_args()
    threads = set_torch_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="epd-bench-", dir=_SHM if _SHM.is_dir() else None) as folder:
        figures = measure(Path(folder), max(1, options.repeats), options.dtype)
    rounded = {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in asdict(figures).items()
    }
    sys.stdout.write(json.dumps(rounded | {"threads": threads}) + "\n" if options.json else _text(figures))
    sys.exit(0 if figures.packing_gain >= LEAST_GAIN and figures.overhead <= MOST_OVERHEAD else 1)


def _text(figures: EngineFigures) -> str:
    return (
        f"{TOGETHER} small items packed: {figures.packed_per_s:.0f} items/s; one at a time through the same "
        f"engine: {figures.single_per_s:.0f}; gain {figures.packing_gain:.2f} (at least {LEAST_GAIN})\n"
        f"{TOGETHER} photos at DINOv2-small in {figures.dtype}: {figures.engine_seconds:.3f} s through the "
        f"engine, {figures.bare_seconds:.3f} s for the bare forwards of the same batches; overhead "
        f"{figures.overhead:.1%} (at most {MOST_OVERHEAD:.0%})\n"
    )


if __name__ == "__main__":
    main()
