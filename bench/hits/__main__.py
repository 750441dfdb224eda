"""``python -m bench.hits [--json] [--seconds S] [--kinds K ...]``: what one API process answers as cached."""

from __future__ import annotations

from bench.cli import finish, load_average, machine, make_parser
from bench.hits.measurement import LEAST_ITEMS, HitFigures, measure
from bench.hits.site import ITEMS, Kind

#: Milliseconds that 99 of 100 requests should take at most.
MOST_P99_MS = 25.0

_NOTE = (
    f"POST /v1/encode, {ITEMS} images a request, every item cached; one uvicorn process as "
    "epd up starts it, Valkey, workers and the load generator on the same machine; mixed = URLs within "
    "EPD_URL_TTL, upload ids and base64 in turn; p99 at 70 % of the mixed load: of the "
    "median of many turns, each at 70 % of what was measured just before it, since the machine's own speed "
    "varies (p99_ms_at_70_pooled: of all requests of all turns); and at 70 % of the 4000 items/s that are "
    "asked for; planned (Poisson) arrivals, "
    "latency from the planned time; cold = the same request of new images through the real workers; "
    "CPU times are for each request"
)


def main() -> None:
    """Measure once, and print. The status is 1 if a target is missed or an answer was wrong."""
    parser = make_parser("hits", __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load")
    parser.add_argument(
        "--kinds", nargs="*", choices=[kind.value for kind in Kind], default=[kind.value for kind in Kind],
        help="sources to measure separately; mixed always is",
    )  # fmt: skip
    options = parser.parse_args()
    load_before = load_average()
    kinds = tuple(dict.fromkeys([Kind.MIXED, *map(Kind, options.kinds)]))
    figures = measure(options.seconds, kinds)
    result = _document(figures) | machine(load_before) | {"note": _NOTE}
    enough = figures.most[Kind.MIXED].items_per_s >= LEAST_ITEMS
    passed = enough and 1000 * figures.steady.p99 <= MOST_P99_MS and not figures.wrong
    finish(result, _text(result), as_json=options.json, passed=passed)


def _document(figures: HitFigures) -> dict[str, object]:
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


def _text(result: dict[str, object]) -> str:
    return (
        f"one API process answers {result['items_per_s']} cached items/s (at least {LEAST_ITEMS:.0f}); at "
        f"70 % of what it could do just before, 99 of 100 requests take {result['p99_ms_at_70']} ms or less "
        f"in the median turn (at most {MOST_P99_MS:.0f}), {result['p99_ms_at_70_pooled']} ms over all turns; "
        f"a request of new images takes {result['cold_over_hit']} times as long as one of known ones\n"
    )


if __name__ == "__main__":
    main()
