"""How many batches the encoders have run, as their workers' heartbeats tell it.

A heartbeat is up to a period old, so a figure counts only when it was sent after the work it should include.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from demo.checks import DemoFailed
from epd.client.blocking import Client
from epd.contracts.answers import WorkerAnswer
from epd.telemetry.counters import Count, split_counter_key

PERIOD = 0.2
LIMIT = 15.0


@dataclass(frozen=True)
class Encoded:
    """What all encode workers have run since they started."""

    batches: int
    items: int


def encoded_so_far(client: Client) -> Encoded:
    """Batches and items run, from heartbeats younger than this call.

    Raises:
        DemoFailed: no such heartbeat came within 15 s.
    """
    start = time.monotonic()
    while time.monotonic() - start < LIMIT:
        asked = time.monotonic()
        workers = [worker for worker in client.status().workers if worker.kind == "encode"]
        if workers and all(worker.age < asked - start for worker in workers):
            return summed(workers)
        time.sleep(PERIOD)
    raise DemoFailed(f"no heartbeat of an encode worker within {LIMIT:.0f} s")


def summed(workers: Iterable[WorkerAnswer]) -> Encoded:
    """The totals of several workers, over all their encoders."""
    totals = {Count.ENCODE_BATCHES: 0.0, Count.ENCODE_ITEMS: 0.0}
    for worker in workers:
        for key, value in worker.counters.items():
            name, _ = split_counter_key(key)
            if name in totals:
                totals[Count(name)] += value
    return Encoded(int(totals[Count.ENCODE_BATCHES]), int(totals[Count.ENCODE_ITEMS]))
