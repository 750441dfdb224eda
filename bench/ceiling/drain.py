"""Putting ready messages on a queue, and the time until a worker has acked the last of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from tasks import broker_keys
from tasks.broker_scripts import ring

_TICK = 0.02
_LIMIT = 60.0

#: Where stock kombu keeps what workers hold (its default ``unacked_key``).
_STOCK_UNACKED = "unacked"


def held_by_ours(client: redis.Redis) -> int:
    """Messages in the unacked hashes of our transport."""
    sessions: Any = client.hkeys(broker_keys.SESSIONS)
    counts: list[Any] = [client.hlen(broker_keys.unacked(name.decode())) for name in sessions]
    return sum(counts)


def held_by_stock(client: redis.Redis) -> int:
    """Messages in kombu's own unacked hash."""
    count: Any = client.hlen(_STOCK_UNACKED)
    return int(count)


def seconds_to_drain(
    client: redis.Redis, queue: str, messages: Sequence[bytes], held: Callable[[redis.Redis], int]
) -> float:
    """Put all messages on the queue in one go, and wait until none is queued and none is unacked.

    Raises:
        TimeoutError: they were not drained within a minute.
    """
    start = time.perf_counter()
    with client.pipeline(transaction=False) as pipe:
        pipe.lpush(queue, *messages)
        ring(pipe, queue)
        pipe.execute()
    while client.llen(queue) or held(client):
        if time.perf_counter() - start > _LIMIT:
            raise TimeoutError(f"{queue}: not drained within {_LIMIT:.0f} s")
        time.sleep(_TICK)
    return time.perf_counter() - start
