"""``python -m bench.handoff [--json] [--rounds N] [--reads N]``: a handoff's read beside the media's work."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys

from bench.handoff.measurement import Cost, Side, measure
from bench.handoff.recompute import FILM, PHOTO

#: What each ratio should reach.
LEAST = 100.0

_NOTE = (
    "GET /v1/handoff of one item by epd.client over a kept connection, CPU of client, API and store "
    "together; against a download from loopback, decode and the published processor in one process (video: "
    "PyAV, and one frame of each pair through the image processor, as its own processor needs torchvision); "
    "means of the reads of a round, medians of the rounds' ratios"
)


def main() -> None:
    """Measure once, and print; the status is 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.handoff", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    parser.add_argument("--rounds", type=int, default=5, help="how often both ways are measured")
    parser.add_argument("--reads", type=int, default=400, help="reads of each file in a round")
    parser.add_argument("--seconds", type=int, default=10, help="length of the video")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    sides = measure(max(1, options.rounds), max(1, options.reads), max(1, options.seconds))
    told = _told("image", sides[PHOTO]) | _told("video", sides[FILM])
    told |= {
        "video_seconds": options.seconds,
        "load_average_before": load_before,
        "cpus": os.cpu_count(),
        "note": _NOTE,
    }
    sys.stdout.write(json.dumps(told) + "\n" if options.json else _text(sides))
    ratios = [ratio for side in sides.values() for ratio in (side.wall_ratio, side.cpu_ratio)]
    sys.exit(0 if min(ratios) >= LEAST else 1)


def _told(name: str, side: Side) -> dict[str, object]:
    read, recomputed = _median(side.reads), _median(side.recomputed)
    return {
        f"{name}_wall_ratio": round(side.wall_ratio, 1),
        f"{name}_cpu_ratio": round(side.cpu_ratio, 1),
        f"{name}_read_ms": round(1000 * read.wall, 3),
        f"{name}_read_cpu_ms": round(1000 * read.cpu, 3),
        f"{name}_recompute_ms": round(1000 * recomputed.wall, 1),
        f"{name}_recompute_cpu_ms": round(1000 * recomputed.cpu, 1),
        f"{name}_handoff_bytes": side.nbytes,
    }


def _median(costs: tuple[Cost, ...]) -> Cost:
    return Cost(statistics.median(cost.wall for cost in costs), statistics.median(cost.cpu for cost in costs))


def _text(sides: dict[str, Side]) -> str:
    return "".join(
        f"{name}: {side.nbytes} bytes read in {1000 * _median(side.reads).wall:.2f} ms; download, decode "
        f"and preprocess take {side.wall_ratio:.0f} times as long and {side.cpu_ratio:.0f} times the CPU "
        f"(at least {LEAST:.0f})\n"
        for name, side in sides.items()
    )


if __name__ == "__main__":
    main()
