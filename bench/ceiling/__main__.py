"""``python -m bench.ceiling [--json] [--messages N]``: the worker's own ceiling beside stock Celery's."""

from __future__ import annotations

import argparse
import json
import sys

from bench.ceiling.measurement import measure

#: What the ratio should reach.
TARGET = 2.5


def main() -> None:
    """Measure once, and print the three figures; the status is 1 where the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.ceiling", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a sentence")
    parser.add_argument("--messages", type=int, default=4000, help="tasks that each worker drains")
    options = parser.parse_args()
    ceiling = measure(options.messages)
    figures = {
        "epd_per_s": round(ceiling.epd_per_s, 1),
        "stock_per_s": round(ceiling.stock_per_s, 1),
        "ratio": round(ceiling.ratio, 2),
    }
    if options.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        sys.stdout.write(
            f"the GPU worker drains {figures['epd_per_s']} tasks/s with an encoder that costs nothing, "
            f"a stock Celery worker {figures['stock_per_s']} empty ones: {figures['ratio']} times as many\n"
        )
    sys.exit(0 if ceiling.ratio >= TARGET else 1)


if __name__ == "__main__":
    main()
