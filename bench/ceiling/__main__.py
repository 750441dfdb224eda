"""``python -m bench.ceiling [--json] [--messages N]``: the GPU worker's ceiling against stock Celery's."""

from __future__ import annotations

from bench.ceiling.measurement import measure
from bench.cli import finish, make_parser

#: The ratio to reach.
TARGET = 2.5


def main() -> None:
    """Measure once, and print the three figures. The status is 1 if the target is missed."""
    parser = make_parser("ceiling", __doc__)
    parser.add_argument("--messages", type=int, default=4000, help="tasks that each worker drains")
    options = parser.parse_args()
    ceiling = measure(options.messages)
    figures = {
        "epd_per_s": round(ceiling.epd_per_s, 1),
        "stock_per_s": round(ceiling.stock_per_s, 1),
        "ratio": round(ceiling.ratio, 2),
    }
    text = (
        f"the GPU worker drains {figures['epd_per_s']} tasks/s with an encoder that costs nothing, "
        f"a stock Celery worker {figures['stock_per_s']} empty ones: {figures['ratio']} times as many\n"
    )
    finish(figures, text, as_json=options.json, passed=ceiling.ratio >= TARGET)


if __name__ == "__main__":
    main()
