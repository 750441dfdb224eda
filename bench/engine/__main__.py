"""``python -m bench.engine [--json] [--repeats N] [--dtype NAME]``: packing gain and overhead on this CPU."""

from __future__ import annotations

from dataclasses import asdict

from bench.cli import finish, folder_in_memory, make_parser
from bench.engine.measurement import TOGETHER, EngineFigures, measure
from gpu_worker.service.torch_threads import set_torch_threads

#: The figures to reach.
LEAST_GAIN = 1.5
MOST_OVERHEAD = 0.15
_DIGITS = 4


def main() -> None:
    """Measure once, and print. The status is 1 if a target is missed."""
    parser = make_parser("engine", __doc__)
    parser.add_argument("--repeats", type=int, default=7, help="pairs of measurements for each figure")
    parser.add_argument(
        "--threads", type=int, default=0, help="torch threads; 0 is one for each physical core"
    )
    parser.add_argument(
        "--dtype", default="auto", help="as in epd.toml; auto is what a worker would choose here"
    )
    options = parser.parse_args()
    threads = set_torch_threads(options.threads)
    with folder_in_memory("epd-bench-") as folder:
        figures = measure(folder, max(1, options.repeats), options.dtype)
    rounded = {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in asdict(figures).items()
    }
    passed = figures.packing_gain >= LEAST_GAIN and figures.overhead <= MOST_OVERHEAD
    finish(rounded | {"threads": threads}, _text(figures), as_json=options.json, passed=passed)


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
