"""The stack against a serial server and a threaded one, all with the same simulated device.

Each is swept to its own knee, in turn. Throughput is compared there, and latency at 70 % of each one's own
knee, so that a faster server carries more load while its latency is measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.encoder.load.options import traffic
from bench.encoder.load.servers import KINDS
from bench.encoder.load.sides import Side, epd_side, running_server
from bench.encoder.load.sweep import PERCENTILES, Loads, Point, Sweep, sweep
from bench.encoder.result import Bar, Result, progress_bar, table
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.media import running_media
from bench.encoder.site.stack import running_site

DEVICE = DeviceModel(batch_ms=30.0, item_ms=1.0)
_SHARE = 0.7
#: Throughput at the knee over that of a baseline, at least.
_BARS = {"serial": 4.0, "threaded": 2.0}
_STEPS = 32  #: about, for the progress bar


@dataclass(frozen=True, slots=True)
class Compared:
    """A server's sweep, and its loads at 70 % of its knee."""

    name: str
    sweep: Sweep
    knee: Point
    steady: Sequence[Point]

    def percentile(self, percent: float) -> float:
        """Milliseconds at 70 % of the knee: the median of the loads."""
        return 1000 * statistics.median(point.outcome.percentile(percent) for point in self.steady)

    def figures(self) -> dict[str, Any]:
        """Rates of requests a second, milliseconds, and all loads."""
        latencies = {f"p{one}_ms_at_70": round(self.percentile(one), 1) for one in PERCENTILES}
        return {
            "items_per_s_at_knee": self.knee.figures()["items_per_s"],
            **latencies,
            **self.sweep.figures(),
            "at_70": [point.figures() for point in self.steady],
        }


def measure(options: argparse.Namespace) -> Result:
    """Sweep the three servers and compare them.

    Raises:
        RuntimeError: a server has no knee, since even the lightest load was too much for it.
    """
    with (
        progress_bar("baselines", _STEPS) as step,
        running_media() as media,
        running_server("serial", DEVICE) as serial,
        running_server("threaded", DEVICE) as threaded,
        running_site(media, DEVICE) as site,
    ):
        loads = Loads(traffic(options, media), options.seconds, step)
        compared = _compared(loads, [epd_side(site), serial, threaded], options.rounds)
    return _result(compared, loads)


def _compared(loads: Loads, sides: Sequence[Side], rounds: int) -> dict[str, Compared]:
    sweeps = sweep(loads, sides)
    knees = {name: one.knee for name, one in sweeps.items()}
    found = {name: knee for name, knee in knees.items() if knee is not None}
    if len(found) < len(sides):
        raise RuntimeError(f"no load was light enough for {sorted(knees.keys() - found.keys())}")
    steady: dict[str, list[Point]] = {name: [] for name in found}
    for _ in range(rounds):
        for side in sides:
            rate = _SHARE * found[side.name].outcome.planned_rate
            steady[side.name].append(loads.at_rate(side, rate))
    return {name: Compared(name, sweeps[name], found[name], steady[name]) for name in found}


def _result(compared: Mapping[str, Compared], loads: Loads) -> Result:
    epd = compared["epd"]
    bars = []
    for name in KINDS:
        other, rate = compared[name], epd.knee.outcome.achieved_rate
        bars.append(Bar(f"vs_{name}", round(rate / other.knee.outcome.achieved_rate, 2), _BARS[name]))
        p50 = round(epd.percentile(50) / other.percentile(50), 2)
        bars.append(Bar(f"p50_over_{name}", p50, 1.0, at_least=False))
    figures = {name: one.figures() for name, one in compared.items()}
    setting = {"device": str(DEVICE), "traffic": str(loads.traffic)}
    header = ("", "knee, requests/s", "items/s", "p50 at 70 %, ms", "p99 at 70 %, ms")
    rows = [
        (name, one["knee_qps"], one["items_per_s_at_knee"], one["p50_ms_at_70"], one["p99_ms_at_70"])
        for name, one in figures.items()
    ]
    text = f"{setting['traffic']}; {DEVICE}\n{table(header, rows)}"
    return Result(setting | {"sides": figures}, text, tuple(bars))
