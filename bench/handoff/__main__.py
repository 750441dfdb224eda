"""``python -m bench.handoff [--json] [--rounds N] [--reads N]``: reading a handoff against its work."""

from __future__ import annotations

import statistics

from bench.cli import finish, load_average, machine, make_parser
from bench.handoff.measurement import Cost, Side, measure
from bench.handoff.recompute import FILM, PHOTO

#: The ratio to reach, for each.
LEAST = 100.0

_NOTE = (
    "GET /v1/handoff of one item by epd.client over a kept connection, CPU of client, API and store "
    "together; against a download from loopback, decode and the published processor in one process (video: "
    "PyAV, and one frame of each pair through the image processor, as its own processor needs torchvision); "
    "means of the reads of a round, medians of the rounds' ratios"
)


def main() -> None:
    """Measure once, and print. The status is 1 if a target is missed."""
    parser = make_parser("handoff", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often both are measured")
    parser.add_argument("--reads", type=int, default=400, help="reads of each file in a round")
    parser.add_argument("--seconds", type=int, default=10, help="length of the video")
    options = parser.parse_args()
    load_before = load_average()
    sides = measure(max(1, options.rounds), max(1, options.reads), max(1, options.seconds))
    figures = _figures("image", sides[PHOTO]) | _figures("video", sides[FILM])
    figures |= {"video_seconds": options.seconds, **machine(load_before), "note": _NOTE}
    ratios = [ratio for side in sides.values() for ratio in (side.wall_ratio, side.cpu_ratio)]
    finish(figures, _text(sides), as_json=options.json, passed=min(ratios) >= LEAST)


def _figures(name: str, side: Side) -> dict[str, object]:
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
