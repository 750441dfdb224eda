"""Which requests arrive, and when: arrivals at a rate, and the files that their items name."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from bench.encoder.load.generator import Request
from bench.encoder.site.files import Kind
from bench.encoder.site.media import Media

#: Files that the Zipf mix draws from, and the exponent of their popularity. With these, the 100 most popular
#: of the files make up 53 % of the items, and the rarest half 7 %.
POOL = 10_000
EXPONENT = 1.0


class Arrivals(StrEnum):
    """How requests follow one another."""

    POISSON = "poisson"  #: at random
    CONSTANT = "constant"  #: at equal gaps


class Mix(StrEnum):
    """Which files the items name."""

    DISTINCT = "distinct"  #: no file twice
    ZIPF = "zipf"  #: the file of rank r of ``POOL``, with a probability of 1 / r ** ``EXPONENT``


def planned_times(arrivals: Arrivals, rate: float, seconds: float, chance: random.Random) -> list[float]:
    """Sorted times within ``seconds``, ``rate`` a second.

    Poisson arrivals are drawn as uniform times of a fixed number, which is a Poisson process with a known
    number of arrivals. So every load of the same length and rate is the same work.
    """
    count = max(2, round(rate * seconds))
    if arrivals is Arrivals.CONSTANT:
        return [number / rate for number in range(count)]
    return sorted(chance.uniform(0, seconds) for _ in range(count))


def zipf_ranks(pool: int, exponent: float, chance: random.Random) -> Iterator[int]:
    """Ranks from 0, without end: rank r with a probability in proportion to 1 / (r + 1) ** exponent."""
    weights = list(itertools.accumulate((rank + 1) ** -exponent for rank in range(pool)))
    while True:
        yield from chance.choices(range(pool), cum_weights=weights, k=256)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of ``items`` files each, of one kind, from one media server."""

    media: Media
    kind: Kind
    items: int
    mix: Mix
    arrivals: Arrivals

    def __str__(self) -> str:
        files = {Mix.DISTINCT: "no file twice", Mix.ZIPF: f"{POOL} files, Zipf {EXPONENT:g}"}[self.mix]
        return f"{self.items} x {self.kind} a request, {files}, arrivals: {self.arrivals}"

    def at_rate(self, rate: float, seconds: float, seed: int) -> tuple[Request, ...]:
        """Requests that arrive at a rate. In the Zipf mix, files depend only on the arguments."""
        chance = random.Random(f"{seed} {rate}")
        times = planned_times(self.arrivals, rate, seconds, chance)
        urls = self._urls(chance)
        return tuple(Request(at=at, urls=self._of_one(urls)) for at in times)

    def at_once(self, count: int, seed: int) -> tuple[Request, ...]:
        """Requests without planned times."""
        urls = self._urls(random.Random(seed))
        return tuple(Request(at=0.0, urls=self._of_one(urls)) for _ in range(count))

    def _urls(self, chance: random.Random) -> Iterator[str]:
        if self.mix is Mix.DISTINCT:
            return (self.media.new_urls(self.kind, 1)[0] for _ in itertools.count())
        ranks = zipf_ranks(POOL, EXPONENT, chance)
        return (f"{self.media.url}/{self.kind}/zipf-{rank}" for rank in ranks)

    def _of_one(self, urls: Iterator[str]) -> tuple[str, ...]:
        """The URLs of one request, which names no file twice."""
        names: dict[str, None] = {}
        while len(names) < self.items:
            names[next(urls)] = None
        return tuple(names)
