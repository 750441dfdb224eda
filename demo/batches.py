"""How many batches the encoders have run, as their workers' heartbeats tell it.

A heartbeat is up to a period old, so a figure counts only when it was sent after the work it should include.
"""

from __future__ import annotations

import time

from demo.checks import DemoFailed
from epd.client.blocking import Client
from epd.contracts.answers import StatusAnswer, WorkerAnswer

PERIOD = 0.2
LIMIT = 15.0


def encoded_counts(client: Client) -> dict[str, int]:
    """``batches`` and ``items`` run so far, from heartbeats younger than this call.

    Raises:
        DemoFailed: no such heartbeat came within 15 s.
    """
    start = time.monotonic()
    while time.monotonic() - start < LIMIT:
        asked = time.monotonic()
        workers = _encode_workers(client.status())
        if workers and all(worker.age < asked - start for worker in workers):
            return {name: sum(int(w.counters.get(name, 0)) for w in workers) for name in ("batches", "items")}
        time.sleep(PERIOD)
    raise DemoFailed(f"no heartbeat of an encode worker within {LIMIT:.0f} s")


def _encode_workers(status: StatusAnswer) -> list[WorkerAnswer]:
    return [worker for worker in status.workers if worker.kind == "encode"]
