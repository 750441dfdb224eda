"""What the broker holds of our queues: messages that wait, and messages that workers hold unacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from epd.contracts.errors import StoreUnavailable
from tasks import broker_keys
from tasks.broker_scripts import script_text
from tasks.celery import app
from tasks.queues import QUEUES

_ACQUIRE_SECONDS = 5.0


def waiting_messages() -> Mapping[str, int]:
    """Messages that no worker has taken, by queue; raises ``StoreUnavailable``."""
    with _channel() as channel:
        return {name: channel.queue_declare(queue=name).message_count for name in QUEUES}


def unacked_messages() -> Mapping[str, int]:
    """Messages that workers have taken and not acked, by queue; raises ``StoreUnavailable``."""
    with _channel() as channel:
        answer = channel.client.eval(script_text("held"), 1, broker_keys.SESSIONS, broker_keys.unacked(""))
    counts: Counter[str] = Counter(dict.fromkeys(QUEUES, 0))
    for lane, count in zip(answer[::2], answer[1::2], strict=True):
        counts[broker_keys.queue_of(_text(lane))] += int(count)
    return {name: counts[name] for name in QUEUES}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def _channel() -> Iterator[Any]:
    """The channel of a pooled connection for one question; every failure of it is ``StoreUnavailable``.

    A channel of its own would be two new connections for each question, twice a second.
    """
    try:
        with app.pool.acquire(block=True, timeout=_ACQUIRE_SECONDS) as connection:
            try:
                connection.ensure_connection(max_retries=1, interval_start=0.1)
                yield connection.default_channel
            except Exception:
                connection.collect()  # the next question connects anew
                raise
    except Exception as error:  # redis, kombu and socket errors, each with a base class of its own
        raise StoreUnavailable("the broker does not answer") from error
