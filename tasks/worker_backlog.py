"""How long the queues are, in time: when the oldest message of each lane was published."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from redis.exceptions import RedisError

from epd.contracts.errors import StoreUnavailable
from tasks import broker_keys
from tasks.publish import ENQUEUED_AT
from tasks.queues import PRIORITY_STEPS, QUEUES


def lanes() -> list[str]:
    """The broker's lists of our queues: one a queue and priority."""
    return [broker_keys.lane(queue, step) for queue in QUEUES for step in PRIORITY_STEPS.values()]


def oldest_queued(app: Any) -> float | None:
    """When the oldest message that waits in a queue was published, in Unix seconds; None when none waits.

    Raises:
        StoreUnavailable: the broker does not answer.
    """
    try:
        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            with client.pipeline(transaction=False) as pipe:
                for lane in lanes():
                    pipe.lindex(lane, -1)
                return oldest_of(pipe.execute())
    except (RedisError, OSError) as error:
        raise StoreUnavailable("the broker does not answer") from error


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
