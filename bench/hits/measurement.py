"""One run: cold against cached latency, then the most that one API process answers, then 70 % of it."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.hits.load import quantile
from bench.hits.pictures import pictures
from bench.hits.plan import Outcome, Plan, RoundsOutcome, RoundsPlan
from bench.hits.site import ITEMS, Kind, Site, running_site

_ROOT = Path(__file__).parents[2]
#: Items a second that the figures should reach.
LEAST_ITEMS = 4000.0

_PICTURES = 96
_REQUESTS = 96
_CONNECTIONS = 16
#: Connections of the open loop: more than are ever needed at once, so that no request waits for one.
_CONNECTIONS_AT_RATE = 64
_WARM_UP_SECONDS = 1.5
_SHARE = 0.7
_TURN_SECONDS = 0.75
#: Turns between whose limits lies more than this share are left out: the machine itself changed.
_UNEVEN = 0.15
_COLD_ROUNDS = 9
_HITS = 3  #: of each new request, afterwards


@dataclass(frozen=True, slots=True)
class Load:
    """An outcome, and the CPU seconds that the API's process and the store's spent on each request."""

    outcome: Outcome
    api_cpu: float
    store_cpu: float

    @property
    def items_per_s(self) -> float:
        """Items answered a second."""
        return ITEMS * self.outcome.answered / self.outcome.seconds


@dataclass(frozen=True, slots=True)
class Turns:
    """Ordered latencies in seconds of many turns at 70 % of the mixed load, as it was around each.

    ``even`` are those of the turns after which the machine was as fast as before; ``all`` of every one.
    """

    even: list[float]
    all: list[float]
    turns: int
    even_turns: int
    rates: list[float]
    wrong: tuple[str, ...]
    unsent: int

    @classmethod
    def of(cls, outcome: RoundsOutcome) -> Turns:
        """From what the load process told."""
        even = [one for one in outcome.rounds if one.is_even(_UNEVEN)]
        return cls(
            even=sorted(seconds for one in even for seconds in one.latencies) or [math.inf],
            all=sorted(seconds for one in outcome.rounds for seconds in one.latencies) or [math.inf],
            turns=len(outcome.rounds),
            even_turns=len(even),
            rates=[_SHARE * one.before for one in outcome.rounds],
            wrong=outcome.wrong,
            unsent=outcome.unsent,
        )

    def p99(self) -> float:
        """Seconds within which 99 of 100 requests of the even turns had their answer."""
        return quantile(self.even, 0.99)


@dataclass(frozen=True, slots=True)
class HitFigures:
    """``most`` is as fast as it goes, by kind of source; ``steady`` at 70 % of the mixed one.

    ``asked`` is at 70 % of ``LEAST_ITEMS``: the same load whatever the machine can do.
    """

    most: dict[Kind, Load]
    steady: Turns
    asked: Load
    cold_seconds: float
    hit_seconds: float

    @property
    def wrong(self) -> list[str]:
        """What was wrong with any answer."""
        loads = [*self.most.values(), self.asked]
        return [complaint for load in loads for complaint in load.outcome.wrong] + list(self.steady.wrong)


def measure(seconds: float, kinds: tuple[Kind, ...]) -> HitFigures:
    """Run a stack and load it; each kind of load takes ``seconds``.

    Raises:
        RuntimeError: the stack or the load's process failed.
    """
    with running_site(_PICTURES) as site:
        cold, hit = _latencies(site)
        for kind in kinds:
            _load(site, kind, min(seconds, _WARM_UP_SECONDS))
        most = {kind: _load(site, kind, seconds) for kind in kinds}
        steady = _turns(site, seconds)
        asked = _load(site, Kind.MIXED, seconds, _SHARE * LEAST_ITEMS / ITEMS)
        return HitFigures(most, steady, asked, cold, hit)


def _latencies(site: Site) -> tuple[float, float]:
    """Median seconds of a request of new pictures, and of the same requests afterwards, one at a time."""
    new = pictures(_COLD_ROUNDS * ITEMS, seed=2)
    fresh = Site(site.stack, site.files_url, new, site.http)
    cold: list[float] = []
    hits: list[float] = []
    for start in range(0, len(new), ITEMS):
        items = [fresh.item(Kind.DATA, number) for number in range(start, start + ITEMS)]
        cold.append(site.encode(items)[1])
        hits += [site.encode(items)[1] for _ in range(_HITS)]
    return statistics.median(cold), statistics.median(hits)


def _load(site: Site, kind: Kind, seconds: float, rate: float | None = None) -> Load:
    processes = (site.process("api"), site.process("redis"))
    plan = Plan(
        port=site.port,
        requests=site.requests(kind, _REQUESTS, seed=3),
        connections=_CONNECTIONS if rate is None else _CONNECTIONS_AT_RATE,
        seconds=seconds,
        rate=rate,
    )
    before = [_cpu(process) for process in processes]
    outcome = Outcome.from_json(_told("load", plan.to_json(), seconds))
    after = [_cpu(process) for process in processes]
    spent = [(late - early) / max(1, outcome.answered) for early, late in zip(before, after, strict=True)]
    return Load(outcome, *spent)


def _turns(site: Site, seconds: float) -> Turns:
    """Four times as long in all as another load: many turns, of which some do not count."""
    plan = RoundsPlan(
        port=site.port,
        requests=site.requests(Kind.MIXED, _REQUESTS, seed=3),
        connections=_CONNECTIONS,
        connections_at_share=_CONNECTIONS_AT_RATE,
        rounds=math.ceil(4 * seconds / _TURN_SECONDS),
        seconds=_TURN_SECONDS,
        share=_SHARE,
    )
    return Turns.of(RoundsOutcome.from_json(_told("rounds", plan.to_json(), 8 * seconds)))


def _told(module: str, plan: str, seconds: float) -> bytes:
    """What a load process prints; raises ``RuntimeError`` where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.hits.{module}"], input=plan.encode(), cwd=_ROOT,
        capture_output=True, check=False, timeout=seconds + 60,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the load failed:\n{done.stderr.decode(errors='replace')[-3000:]}")
    return done.stdout


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
