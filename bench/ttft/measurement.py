"""Runs both sides under the same loads, one after the other on the same cores."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.images import photos, renamed, served
from bench.ttft.load import PHOTOS, Mix, Requests, first_tokens, one_by_one, saturate
from bench.ttft.sides import Layout, Side, colocated, separate
from bench.ttft.sizes import make_model, parameters

#: Seconds before each answer of the web server, as from a server far away.
DELAY = 0.05
_PATH = re.compile(r"/(\d+)/(\w+)\.jpg")

#: Open requests while a side's own limit is measured.
_AT_ONCE = 8
_ALONE, _SATURATING, _ARRIVING = 0, 1, 2
_ALONE_COUNT = 4
#: Requests of the distinct mix for each of the repeated one. No target depends on it, and it takes longest.
_DISTINCT_SHARE = 1 / 3


@dataclass(frozen=True)
class MixFigures:
    """A side under one mix: requests a second at its limit, and seconds to the first token at ``rate``.

    ``ttft_alone`` is the mean if no other request is open.
    """

    throughput: float
    rate: float
    ttft_mean: float
    ttft_median: float
    ttft_worst: float
    ttft_alone: float


@dataclass(frozen=True)
class TtftFigures:
    """Both sides, by mix. ``differing`` counts the requests whose first tokens are not equal."""

    colocated: Mapping[Mix, MixFigures]
    separate: Mapping[Mix, MixFigures]
    parameters: Mapping[str, int]
    images: int
    differing: int


def measure(
    requests: int, *, model: str, one: Layout, three: Layout, url_ttl: float, say: Callable[[str], None]
) -> TtftFigures:
    """Measure with so many requests in each load.

    Args:
        requests: requests of each load.
        model: the real model whose proportions the checkpoint has (``sizes``).
        one: layout of the side with one process.
        three: layout of the side with three.
        url_ttl: ``EPD_URL_TTL`` in seconds.
        say: takes a line about each load when it has ended.
    """
    with tempfile.TemporaryDirectory(prefix="epd-ttft-") as name, photo_site(photos(PHOTOS)) as site:
        folder = Path(name)
        checkpoint = folder / "model"
        make_model(checkpoint, model)
        together, first = _loads(colocated(checkpoint, one), site, requests, {}, say)
        rates = {mix: figures.throughput for mix, figures in together.items()}
        apart, again = _loads(
            separate(checkpoint, folder, site, url_ttl=url_ttl, layout=three), site, requests, rates, say
        )
        planned = [r for mix in Mix for r in Requests(site).of(mix, _count(mix, requests), _ARRIVING)]
        return TtftFigures(
            colocated=together,
            separate=apart,
            parameters=parameters(checkpoint),
            images=sum(len(request["parts"]) - 2 for request in planned),
            differing=sum(first[key] != again[key] for key in first),
        )


@contextmanager
def photo_site(files: Sequence[bytes]) -> Iterator[str]:
    """Serve ``/{number}/{name}.jpg``: a photo, as a file of that name, after ``DELAY`` seconds."""

    def find(path: str) -> bytes | None:
        found = _PATH.fullmatch(path)
        return renamed(files[int(found[1])], found[2]) if found else None

    with served(find, delay=DELAY) as site:
        yield site


def _count(mix: Mix, requests: int) -> int:
    return requests if mix is Mix.REPEATED else max(_AT_ONCE + 1, round(requests * _DISTINCT_SHARE))


def _loads(
    starting: AbstractContextManager[Side],
    site: str,
    repeated: int,
    rates: Mapping[Mix, float],
    say: Callable[[str], None],
) -> tuple[dict[Mix, MixFigures], dict[str, int]]:
    """Each mix at the side's own limit, then at its rate in ``rates``, by default that limit."""
    figures = {}
    with starting as side:
        requests = Requests(site)
        saturate(side.ask, requests.warm_up(), 1)
        for mix in Mix:
            count = _count(mix, repeated)
            alone = one_by_one(side.ask, requests.of(mix, _ALONE_COUNT, _ALONE))
            throughput = saturate(side.ask, requests.of(mix, count, _SATURATING), _AT_ONCE)
            rate = rates.get(mix, throughput)
            seconds = first_tokens(side.ask, requests.of(mix, count, _ARRIVING), rate, seed=count)
            figures[mix] = MixFigures(
                throughput=throughput,
                rate=rate,
                ttft_mean=statistics.fmean(seconds),
                ttft_median=statistics.median(seconds),
                ttft_worst=max(seconds),
                ttft_alone=alone,
            )
            say(f"{mix}: {figures[mix]}")
    return figures, side.first
