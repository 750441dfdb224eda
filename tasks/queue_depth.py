"""How many messages of our queues wait, how many workers hold, and how old the oldest waiting one is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from epd.contracts.errors import StoreUnavailable
from tasks.celery import app
from tasks.envelope import ENQUEUED_AT
from tasks.queues import PRIORITY_STEPS, QUEUES
from tasks.transport import keys
from tasks.transport.keys import script_text

#: Seconds that a query waits for a free connection of the pool.
_ACQUIRE_SECONDS = 5.0


def waiting_messages() -> Mapping[str, int]:
    """Messages that no worker has taken, by queue. One round trip.

    Raises:
        StoreUnavailable: the broker does not answer.
    """
    lists = [(keys.queue_of(lane), key) for lane in lanes() for key in (lane, *keys.side_lists(lane))]
    with _channel() as channel, channel.client.pipeline(transaction=False) as pipe:
        for _, key in lists:
            pipe.llen(key)
        lengths = pipe.execute()
    counts: Counter[str] = Counter(dict.fromkeys(QUEUES, 0))
    for (name, _), length in zip(lists, lengths, strict=True):
        counts[name] += length
    return dict(counts)


def unacked_messages() -> Mapping[str, int]:
    """Messages that workers have taken and not acked, by queue; raises as ``waiting_messages``."""
    with _channel() as channel:
        answer = channel.client.eval(script_text("held"), 1, keys.SESSIONS, keys.unacked(""))
    counts: Counter[str] = Counter(dict.fromkeys(QUEUES, 0))
    for lane, count in zip(answer[::2], answer[1::2], strict=True):
        counts[keys.queue_of(_text(lane))] += int(count)
    return {name: counts[name] for name in QUEUES}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def _channel() -> Iterator[Any]:
    """The channel of a pooled connection for one query; every failure of it is ``StoreUnavailable``.

    A new channel would open two connections for each query, twice a second.
    """
    try:
        with app.pool.acquire(block=True, timeout=_ACQUIRE_SECONDS) as connection:
            try:
                connection.ensure_connection(max_retries=1, interval_start=0.1)
                yield connection.default_channel
            except Exception:
                connection.collect()  # the next query connects again
                raise
    except Exception as error:  # errors of redis, kombu and sockets share no base class
        raise StoreUnavailable("the broker does not answer") from error


def lanes() -> list[str]:
    """The broker's lists of our queues, one for each queue and priority."""
    return [keys.lane(queue, step) for queue in QUEUES for step in PRIORITY_STEPS.values()]


def oldest_queued() -> float | None:
    """When the oldest message that waits in a queue was published, in Unix seconds; None when none waits.

    Raises:
        StoreUnavailable: the broker does not answer.
    """
    with _channel() as channel, channel.client.pipeline(transaction=False) as pipe:
        for lane in lanes():
            pipe.lindex(lane, -1)
        return oldest_of(pipe.execute())


def oldest_of(messages: Iterable[bytes | None]) -> float | None:
    """The earliest publication time in the headers of kombu's envelopes; None without any."""
    times = [
        time for message in messages if message is not None and (time := _published(message)) is not None
    ]
    return min(times, default=None)


def _published(message: bytes) -> float | None:
    try:
        value = json.loads(message)["headers"].get(ENQUEUED_AT)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return float(value) if isinstance(value, int | float) else None
