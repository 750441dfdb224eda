"""One run: cold against cached latency, the most that one API process answers, and latency at 70 % of it."""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.hits.load import Outcome, Plan, RoundsOutcome, RoundsPlan, quantile
from bench.hits.site import ITEMS, Kind, Site, running_site
from bench.images import thumbnails

_ROOT = Path(__file__).parents[2]
#: Items a second to reach.
LEAST_ITEMS = 4000.0

_IMAGES = 96
_REQUESTS = 96
_CONNECTIONS = 16
#: Connections at a rate: more than are ever needed at once, so that no request waits for one.
_CONNECTIONS_AT_RATE = 64
_WARM_UP_SECONDS = 1.5
_SHARE = 0.7
_TURN_SECONDS = 0.75
_COLD_ROUNDS = 9
_HITS = 3  #: of each new request, afterwards


@dataclass(frozen=True, slots=True)
class Load:
    """An outcome, and the CPU seconds of the API's and the store's process for each request."""

    outcome: Outcome
    api_cpu: float
    store_cpu: float

    @property
    def items_per_s(self) -> float:
        """Answered items a second."""
        return ITEMS * self.outcome.answered / self.outcome.seconds


@dataclass(frozen=True, slots=True)
class Turns:
    """Many turns at 70 % of the mixed load, as it was just before each. Seconds.

    ``p99`` and ``p50`` are those of the median turn, so a turn in which the machine itself was slow counts
    little. ``p99_pooled`` is over the requests of all turns together.
    """

    p50: float
    p99: float
    p99_pooled: float
    worst: float
    turns: int
    rates: tuple[float, ...]
    wrong: tuple[str, ...]
    unsent: int

    @classmethod
    def of(cls, outcome: RoundsOutcome) -> Turns:
        """From the outcome of the load process."""
        each = [sorted(one.latencies) or [math.inf] for one in outcome.rounds]
        pooled = sorted(itertools.chain.from_iterable(each))
        return cls(
            p50=statistics.median(quantile(one, 0.5) for one in each),
            p99=statistics.median(quantile(one, 0.99) for one in each),
            p99_pooled=quantile(pooled, 0.99),
            worst=pooled[-1],
            turns=len(each),
            rates=tuple(one.rate for one in outcome.rounds),
            wrong=outcome.wrong,
            unsent=outcome.unsent,
        )


@dataclass(frozen=True, slots=True)
class HitFigures:
    """Loads and latencies.

    ``most`` is as fast as possible, by kind of source. ``steady`` is at 70 % of the mixed load, measured just
    before each turn. ``asked`` is at 70 % of ``LEAST_ITEMS``, the same load whatever the machine can do.
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
        return [problem for load in loads for problem in load.outcome.wrong] + list(self.steady.wrong)


def measure(seconds: float, kinds: tuple[Kind, ...]) -> HitFigures:
    """Start a stack and put it under load; each kind of load takes ``seconds``.

    Raises:
        RuntimeError: the stack or the load's process failed.
    """
    with running_site(_IMAGES) as site:
        cold, hit = _latencies(site)
        for kind in kinds:
            _load(site, kind, min(seconds, _WARM_UP_SECONDS))
        most = {kind: _load(site, kind, seconds) for kind in kinds}
        steady = _turns(site, seconds)
        asked = _load(site, Kind.MIXED, seconds, _SHARE * LEAST_ITEMS / ITEMS)
        return HitFigures(most, steady, asked, cold, hit)


def _latencies(site: Site) -> tuple[float, float]:
    """Median seconds of a request of new images, and of the same requests afterwards, one at a time."""
    new = thumbnails(_COLD_ROUNDS * ITEMS, seed=2)
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
    outcome = Outcome.from_json(_run_load("load", plan.to_json(), seconds))
    after = [_cpu(process) for process in processes]
    spent = [(late - early) / max(1, outcome.answered) for early, late in zip(before, after, strict=True)]
    return Load(outcome, *spent)


def _turns(site: Site, seconds: float) -> Turns:
    """Turns at a share. They take five times as long as another load, so that there are many."""
    plan = RoundsPlan(
        port=site.port,
        requests=site.requests(Kind.MIXED, _REQUESTS, seed=3),
        connections=_CONNECTIONS,
        connections_at_share=_CONNECTIONS_AT_RATE,
        rounds=math.ceil(4 * seconds / _TURN_SECONDS),
        seconds=_TURN_SECONDS,
        share=_SHARE,
    )
    return Turns.of(RoundsOutcome.from_json(_run_load("rounds", plan.to_json(), 8 * seconds)))


def _run_load(module: str, plan: str, seconds: float) -> bytes:
    """The output of a load process. Raises ``RuntimeError`` if it fails."""
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
