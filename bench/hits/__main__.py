"""``python -m bench.hits [--json] [--seconds S] [--kinds K ...]``: what one API process answers as cached."""

from __future__ import annotations

import argparse
import json
import os
import sys

from bench.hits.measurement import LEAST_ITEMS, HitFigures, measure
from bench.hits.site import ITEMS, Kind

#: What 99 of 100 requests should take at most.
MOST_P99_MS = 25.0

_NOTE = (
    f"POST /v1/encode, {ITEMS} pictures a request, every item cached; one uvicorn process as "
    "epd up starts it, Valkey, workers and the load generator on the same machine; mixed = URLs within "
    "EPD_URL_TTL, upload ids and base64 by turns; p99 at 70 % of the mixed load: of the "
    "median of many turns, each at 70 % of what was measured just before it, since the machine's own speed "
    "wanders (p99_ms_at_70_pooled: of all requests of all turns); and at 70 % of the 4000 items/s that are "
    "asked for; planned (Poisson) arrivals, "
    "latency from the planned time; cold = the same request of new pictures through the real workers; "
    "CPU times are for each request"
)


def main() -> None:
    """Measure once, and print; the status is 1 where a target is missed or an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.hits", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load")
    parser.add_argument(
        "--kinds", nargs="*", choices=[kind.value for kind in Kind], default=[kind.value for kind in Kind],
        help="sources to measure each for itself; mixed always is",
    )  # fmt: skip
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    kinds = tuple(dict.fromkeys([Kind.MIXED, *map(Kind, options.kinds)]))
    figures = measure(options.seconds, kinds)
    told = _told(figures) | {"load_average_before": load_before, "cpus": os.cpu_count(), "note": _NOTE}
    sys.stdout.write(json.dumps(told) + "\n" if options.json else _text(told))
    enough = figures.most[Kind.MIXED].items_per_s >= LEAST_ITEMS
    good = enough and 1000 * figures.steady.p99 <= MOST_P99_MS
    sys.exit(0 if good and not figures.wrong else 1)


def _told(figures: HitFigures) -> dict[str, object]:
    mixed, steady = figures.most[Kind.MIXED], figures.steady
    return {
        "items_per_s": round(mixed.items_per_s, 1),
        "p99_ms_at_70": round(1000 * steady.p99, 2),
        "cold_over_hit": round(figures.cold_seconds / figures.hit_seconds, 1),
        "wrong_answers": figures.wrong,
        "p50_ms_at_70": round(1000 * steady.p50, 2),
        "worst_ms_at_70": round(1000 * steady.worst, 2),
        "p99_ms_at_70_pooled": round(1000 * steady.p99_pooled, 2),
        "turns_at_70": steady.turns,
        "planned_items_per_s_at_70": [round(ITEMS * rate) for rate in (min(steady.rates), max(steady.rates))],
        "unsent_at_70": steady.unsent,
        "p99_ms_at_2800_items_per_s": round(1000 * figures.asked.outcome.p99, 2),
        "cold_ms": round(1000 * figures.cold_seconds, 1),
        "hit_ms": round(1000 * figures.hit_seconds, 2),
        "by_kind": {
            kind.value: {
                "items_per_s": round(load.items_per_s, 1),
                "api_cpu_ms": round(1000 * load.api_cpu, 3),
                "store_cpu_ms": round(1000 * load.store_cpu, 3),
                "load_cpu_ms": round(1000 * load.outcome.cpu / max(1, load.outcome.answered), 3),
                "p99_ms": round(1000 * load.outcome.p99, 2),
            }
            for kind, load in figures.most.items()
        },
    }


def _text(told: dict[str, object]) -> str:
    return (
        f"one API process answers {told['items_per_s']} cached items/s (at least {LEAST_ITEMS:.0f}); at 70 % "
        f"of what it could do just before, 99 of 100 requests take {told['p99_ms_at_70']} ms or less in the "
        f"median turn (at most {MOST_P99_MS:.0f}), {told['p99_ms_at_70_pooled']} ms over all turns; a "
        f"request of new pictures takes {told['cold_over_hit']} times as long as one of known ones\n"
    )


if __name__ == "__main__":
    main()
