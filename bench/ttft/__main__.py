"""``python -m bench.ttft [--json] [--requests N]``: time to first token, one process against three."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

from bench.cli import finish, load_average, make_parser
from bench.images import PHOTO_SIZE
from bench.ttft.load import MOST_IMAGES, PHOTOS, Mix
from bench.ttft.measurement import DELAY, MixFigures, TtftFigures, measure
from bench.ttft.sides import Layout
from bench.ttft.sizes import ROWS, SMALL

#: The ratios to reach for the repeated mix.
LEAST_TTFT, LEAST_THROUGHPUT = 8.0, 2.0
#: Fewest requests of a load.
LEAST = 16
_CORES = 2
_DIGITS = 3

_MS = round(1000 * DELAY)

_NOTE = (
    "colocated: fetch, decode, preprocess, encode and prefill in one process (PIL, published "
    "processor and model, one request at a time through the model, downloads in parallel); three "
    "processes: epd as epd up starts it, Prefill, Decode; layouts: prompts that a side's language "
    "model computes at once, and torch threads for each; the encoder of the three has one thread more; "
    "one side after the other on the same cores, which load generator and web server share; "
    "float32, random weights; throughput: requests a second with 8 open; "
    "a third of the requests for the distinct mix; ttft: random arrivals at the "
    "colocated side's own throughput of that mix, from the planned time: there waits grow with the number "
    f"of requests; ttft_alone: one request at a time, 4 of them; 1 to {MOST_IMAGES} images of "
    f"{PHOTO_SIZE[0]}x{PHOTO_SIZE[1]} a request, at most {ROWS} rows each, by URL from a server with {_MS} "
    f"ms delay; repeated: {PHOTOS} files, each asked for before; distinct: no file twice"
)


def main() -> None:
    """Measure once, and print. The status is 1 if a target is missed or a first token differs."""
    parser = make_parser("ttft", __doc__)
    parser.add_argument("--requests", type=int, default=256, help=f"in each load, {LEAST} or more")
    parser.add_argument("--url-ttl", type=float, default=0.0, help="EPD_URL_TTL; 0: revalidate each time")
    parser.add_argument("--model", choices=list(SMALL), default="qwen2-vl-2b", help="whose proportions")
    for side, best in (("colocated", "2x1"), ("prefill", "1x2")):
        parser.add_argument(
            f"--{side}-layout", type=_layout, default=best, metavar="WxT", help="prompts x torch threads"
        )
    options = parser.parse_args()
    if options.requests < LEAST:
        parser.error(f"--requests: {LEAST} or more")
    cores = sorted(os.sched_getaffinity(0))[:_CORES]
    os.sched_setaffinity(0, cores)  # also for every process that this one starts
    before = load_average()
    figures = measure(
        options.requests,
        model=options.model,
        one=options.colocated_layout,
        three=options.prefill_layout,
        url_ttl=options.url_ttl,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    document = _document(figures)
    extra = {"requests": options.requests, "url_ttl": options.url_ttl, "cores": len(cores)}
    extra |= {"model": options.model}
    extra["encode_over_prefill"] = round(SMALL[options.model].encode_over_prefill(), _DIGITS)
    extra |= {name: asdict(vars(options)[name]) for name in ("colocated_layout", "prefill_layout")}
    document |= extra | {"load_average_before": before, "note": _NOTE}
    fast = document["ttft_ratio"] >= LEAST_TTFT and document["throughput_ratio"] >= LEAST_THROUGHPUT
    finish(document, _text(document), as_json=options.json, passed=fast and not figures.differing)


def _layout(text: str) -> Layout:
    workers, threads = map(int, text.split("x"))
    return Layout(workers, threads)


def _document(figures: TtftFigures) -> dict[str, Any]:
    ratios = {}
    for mix, prefix in ((Mix.REPEATED, ""), (Mix.DISTINCT, "distinct_")):
        one, three = figures.colocated[mix], figures.separate[mix]
        ratios[f"{prefix}ttft_ratio"] = round(one.ttft_mean / three.ttft_mean, _DIGITS)
        ratios[f"{prefix}alone_ttft_ratio"] = round(one.ttft_alone / three.ttft_alone, _DIGITS)
        ratios[f"{prefix}throughput_ratio"] = round(three.throughput / one.throughput, _DIGITS)
    return {
        **ratios,
        "differing_first_tokens": figures.differing,
        "colocated": {mix.value: _rounded(one) for mix, one in figures.colocated.items()},
        "three_processes": {mix.value: _rounded(three) for mix, three in figures.separate.items()},
        "parameters": dict(figures.parameters),
        "images": figures.images,
    }


def _rounded(figures: MixFigures) -> dict[str, float]:
    return {name: round(value, _DIGITS) for name, value in asdict(figures).items()}


def _text(document: dict[str, Any]) -> str:
    return (
        f"images that come again: the first token {document['ttft_ratio']} times sooner (at least "
        f"{LEAST_TTFT:.0f}), {document['throughput_ratio']} times the requests (at least "
        f"{LEAST_THROUGHPUT:.0f})\n"
        f"images that never came before: {document['distinct_ttft_ratio']} times sooner, "
        f"{document['distinct_throughput_ratio']} times the requests\n"
    )


if __name__ == "__main__":
    main()
