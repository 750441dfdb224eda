"""The servers under load: epd's stack, and two that do the same work without it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import redis
from prometheus_client.parser import text_string_to_metric_families

from bench.encoder.site.costs import ServerWork, tree_cpu_seconds
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.stack import Site
from epd.telemetry.counters import Count
from epd.telemetry.metrics import INFLIGHT_ITEMS, WORKER_PREFIX

_ROOT = Path(__file__).parents[3]
#: Counters of workers, by the name that a reading has for them.
_COUNTS = {
    "encoded": Count.ENCODE_ITEMS,
    "batches": Count.ENCODE_BATCHES,
    "graph_units": Count.GRAPH_UNITS,
    "padding": Count.GRAPH_PADDING,
}
_IDLE_SECONDS = 30.0
#: Counters of workers come with their heartbeats, one a second.
_HEARTBEAT_SECONDS = 1.3


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals of a server since its start. ``cpu`` is seconds by process."""

    cpu: Mapping[str, float]
    counters: Mapping[str, float]

    def since(self, earlier: Reading) -> Reading:
        """What was added."""
        return Reading(_added(self.cpu, earlier.cpu), _added(self.counters, earlier.counters))


def _added(late: Mapping[str, float], early: Mapping[str, float]) -> dict[str, float]:
    return {name: value - early.get(name, 0.0) for name, value in late.items()}


@dataclass(frozen=True, slots=True)
class Side:
    """A server under load. ``read`` waits until the server has nothing to do, and reads its totals."""

    name: str
    port: int
    read: Callable[[], Reading]


def epd_side(site: Site) -> Side:
    """The stack of a site."""
    client = redis.Redis.from_url(site.stack.settings["EPD_BROKER_URL"])

    def read() -> Reading:
        cpu = {name: tree_cpu_seconds(pid) for name, pid in site.parts().items()}
        work = ServerWork.now(client)
        counters = _idle_counters(site.port)
        calls = {"round_trips": work.round_trips, "commands": sum(work.commands.values())}
        return Reading(cpu, {**counters, **calls})

    return Side("epd", site.port, read)


def _idle_counters(port: int) -> dict[str, float]:
    """The counters of the workers, once no item is in flight.

    Raises:
        TimeoutError: items are still in flight long after the last request.
    """
    end = time.monotonic() + _IDLE_SECONDS
    while _metrics(port)[INFLIGHT_ITEMS]:
        if time.monotonic() > end:
            raise TimeoutError("items are in flight long after the last request")
        time.sleep(0.1)
    time.sleep(_HEARTBEAT_SECONDS)
    found = _metrics(port)
    return {name: found.get(WORKER_PREFIX + count.value, 0.0) for name, count in _COUNTS.items()}


def _metrics(port: int) -> dict[str, float]:
    """Sums over the labels of each metric."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[family.name] = sums.get(family.name, 0.0) + sample.value
    return sums


@contextmanager
def running_server(kind: str, model: DeviceModel) -> Iterator[Side]:
    """One of ``bench.encoder.load.servers`` in a process of its own."""
    command = [sys.executable, "-m", "bench.encoder.load.servers", kind]
    command += ["--batch-ms", str(model.batch_ms), "--item-ms", str(model.item_ms)]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"the {kind} server did not start")
            yield Side(kind, int(port), lambda: Reading({kind: tree_cpu_seconds(process.pid)}, {}))
        finally:
            process.stdin.close()
