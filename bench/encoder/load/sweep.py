"""A sweep of request rates up to the knee: how fast a server answers, and what a request costs at each rate.

The knee is the highest rate that a server keeps up with:

- answers arrive at 0.95 of the planned rate or more (``Outcome.achieved_rate``);
- 99 of 100 requests or more succeed;
- the 99th percentile of latency is at most ten times the median at the lightest load of the sweep.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.encoder.load.generator import Outcome, Plan, Request
from bench.encoder.load.options import traffic
from bench.encoder.load.sides import Reading, Side, epd_side
from bench.encoder.load.traffic import Traffic
from bench.encoder.result import Result, Step, progress_bar, table
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.media import running_media
from bench.encoder.site.stack import running_site

_ROOT = Path(__file__).parents[3]
LEAST_ACHIEVED = 0.95
LEAST_SUCCESS = 0.99
MOST_SLOWDOWN = 10.0
#: Loads of a sweep, as shares of what the server answers with ``AT_ONCE`` requests open all the time. It
#: ends after two in a row that the server does not keep up with.
SHARES = (0.25, 0.6, 0.75, 0.85, 0.95, 1.05, 1.2, 1.4)
AT_ONCE = 12
#: Requests for that: more than are answered within a load.
_PREPARED = 4096
#: Requests that a load should have, and by how much it may last longer for that.
_ENOUGH = 60
_MOST_STRETCH = 2.0
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Point:
    """One load, and what it cost the server."""

    outcome: Outcome
    items: int  #: of a request
    spent: Reading

    @property
    def keeps_up(self) -> bool:
        """Whether answers arrived as fast as requests, and succeeded."""
        kept = self.outcome.achieved_rate >= LEAST_ACHIEVED * self.outcome.planned_rate
        return kept and self.outcome.success >= LEAST_SUCCESS

    def figures(self) -> dict[str, Any]:
        """As the report has them: rates a second, milliseconds, and shares."""
        outcome, count = self.outcome, self.spent.counters.get
        encoded = max(1, len(outcome.latencies) * self.items)
        figures: dict[str, Any] = {
            "planned_qps": round(outcome.planned_rate, 2),
            "achieved_qps": round(outcome.achieved_rate, 2),
            "items_per_s": round(outcome.achieved_rate * self.items, 1),
            "requests": outcome.planned,
            "success_rate": round(outcome.success, 4),
        }
        if outcome.latencies:
            figures |= {f"p{one}_ms": round(1000 * outcome.percentile(one), 1) for one in PERCENTILES}
        figures |= {
            "keeps_up": self.keeps_up,
            "failures": outcome.failures | ({"no answer": outcome.unanswered} if outcome.unanswered else {}),
            "cached_share": round(outcome.cached / encoded, 4),
            "cpu_ms_an_item": {name: round(1000 * one / encoded, 2) for name, one in self.spent.cpu.items()},
            "load_cpu_ms_an_item": round(1000 * outcome.cpu / encoded, 2),
        }
        if batches := count("batches", 0.0):
            figures["items_a_batch"] = round(count("encoded", 0.0) / batches, 2)
        if units := count("graph_units", 0.0):
            figures["padding_share"] = round(count("padding", 0.0) / units, 4)
        if reads := count("round_trips", 0.0):
            figures["round_trips_an_item"] = round(reads / encoded, 2)
            figures["commands_an_item"] = round(count("commands", 0.0) / encoded, 2)
        return figures


@dataclass(frozen=True, slots=True)
class Sweep:
    """The points of a server, from the lightest load to the heaviest. ``limit`` is requests a second."""

    limit: float
    points: Sequence[Point]

    @property
    def knee(self) -> Point | None:
        """See the module's docstring; None if no load of the sweep was light enough."""
        return knee(self.points)

    def figures(self) -> dict[str, Any]:
        """Rates are requests a second; the knee's is None if no load was light enough."""
        best = self.knee
        return {
            "knee_qps": None if best is None else round(best.outcome.achieved_rate, 2),
            "limit_qps": round(self.limit, 2),
            "points": [point.figures() for point in self.points],
        }


def knee(points: Sequence[Point]) -> Point | None:
    """The point with the highest rate that its server keeps up with."""
    ordered = sorted(points, key=lambda point: point.outcome.planned_rate)
    bound = MOST_SLOWDOWN * ordered[0].outcome.percentile(50)
    good = [point for point in ordered if point.keeps_up and point.outcome.percentile(99) <= bound]
    return good[-1] if good else None


class Loads:
    """Puts loads on servers, one after another, from a process of its own.

    Its methods raise ``RuntimeError`` if the load's process fails, or if an answer is wrong.
    """

    def __init__(self, traffic: Traffic, seconds: float, step: Step) -> None:
        """Each load lasts so many seconds."""
        self.traffic = traffic
        self.seconds = seconds
        self._step = step
        self._seed = 0

    def at_rate(self, side: Side, rate: float) -> Point:
        """So many requests a second."""
        self._seed += 1
        seconds = min(max(self.seconds, _ENOUGH / rate), _MOST_STRETCH * self.seconds)
        requests = self.traffic.at_rate(rate, seconds, self._seed)
        return self._run(side, f"{side.name} at {rate:.1f} requests/s", requests, seconds)

    def at_once(self, side: Side) -> Point:
        """``AT_ONCE`` requests open all the time."""
        self._seed += 1
        requests = self.traffic.at_once(_PREPARED, self._seed)
        text = f"{side.name} with {AT_ONCE} requests at once"
        return self._run(side, text, requests, self.seconds, at_once=AT_ONCE)

    def _run(
        self, side: Side, text: str, requests: Sequence[Request], seconds: float, at_once: int | None = None
    ) -> Point:
        plan = Plan(
            port=side.port,
            type=self.traffic.kind.media_type,
            requests=tuple(requests),
            at_once=at_once,
            seconds=seconds,
            drain=max(5.0, seconds / 2),
        )
        self._step(text)
        before = side.read()
        outcome = run_plan(plan)
        if outcome.wrong:
            raise RuntimeError(f"{side.name} gave wrong answers: {outcome.wrong}")
        return Point(outcome, self.traffic.items, side.read().since(before))


def run_plan(plan: Plan) -> Outcome:
    """Run a plan in a process of its own. Raises ``RuntimeError`` if that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.encoder.load.generator"], input=plan.to_json().encode(), cwd=_ROOT,
        capture_output=True, check=False, timeout=plan.seconds + plan.drain + 60,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the load failed:\n{done.stderr.decode(errors='replace')[-3000:]}")
    return Outcome.from_json(done.stdout)


def sweep(loads: Loads, sides: Sequence[Side]) -> dict[str, Sweep]:
    """Find out what each server can do, then load them with shares of that, one server after the other.

    Raises:
        RuntimeError: a server answers nothing.
    """
    limits = {side.name: loads.at_once(side).outcome.achieved_rate for side in sides}
    if not all(limits.values()):
        raise RuntimeError(f"a server answers nothing: {limits}")
    points: dict[str, list[Point]] = {side.name: [] for side in sides}
    for share in SHARES:
        for side in sides:
            if any(point.keeps_up for point in points[side.name][-2:]) or len(points[side.name]) < 2:
                points[side.name].append(loads.at_rate(side, share * limits[side.name]))
    return {name: Sweep(limits[name], found) for name, found in points.items()}


def measure(options: argparse.Namespace) -> Result:
    """The stack alone: a sweep to its knee, or the rates of ``--qps``."""
    steps = 1 + len(options.qps or SHARES)
    device: DeviceModel | None = options.device_model
    with (
        progress_bar("sweep", steps) as step,
        running_media() as media,
        running_site(media, device) as site,
    ):
        side, loads = epd_side(site), Loads(traffic(options, media), options.seconds, step)
        if options.qps:
            points = [loads.at_rate(side, rate) for rate in options.qps]
            found: dict[str, Any] = {"points": [point.figures() for point in points]}
        else:
            found = sweep(loads, [side])[side.name].figures()
    found |= {"device": str(device or "DINOv2-small on this CPU"), "traffic": str(loads.traffic)}
    return Result(found, _text(found))


def _text(found: dict[str, Any]) -> str:
    columns = ("planned_qps", "achieved_qps", *(f"p{one}_ms" for one in PERCENTILES), "success_rate")
    columns += ("items_a_batch", "cached_share", "round_trips_an_item", "cpu_ms_an_item")
    rows = [[point.get(name, "") for name in columns] for point in found["points"]]
    knee_text = f"; knee at {found['knee_qps']} requests/s" if "knee_qps" in found else ""
    return f"{found['traffic']}; {found['device']}{knee_text}\n{table(columns, rows)}"
