"""Lets this process publish to a server of the tests, and listens to its task events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from redis.client import PubSub

from tasks import publish


@contextmanager
def publishing_to(url: str) -> Iterator[None]:
    """Make ``url`` the broker of what this process publishes; no event is left to be sent later."""
    with pytest.MonkeyPatch.context() as patch:
        line = publish._Line()
        patch.setenv("CELERY_BROKER_WRITE_URL", url)
        patch.setattr(publish, "_line", line)
        yield
        end = time.monotonic() + 5
        while (line.sent._due.is_set() or line.sent._events) and time.monotonic() < end:
            time.sleep(0.01)


@contextmanager
def event_channel(client: redis.Redis) -> Iterator[PubSub]:
    """A subscription to the task events of the client's database alone."""
    database = client.get_connection_kwargs()["db"]
    with client.pubsub(ignore_subscribe_messages=True) as events:
        events.psubscribe(f"/{database}.celeryev/*")
        events.get_message(timeout=5)
        yield events
