"""What a worker says about its tasks: events in batches, and log lines of failures alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from tasks.celery import app
from tasks.worker.events import (
    EVENTS_PER_MESSAGE,
    EventBatches,
    EventProducer,
    install,
    keep_quiet_about_tasks,
)
from tests.store_kit import Stores

TASK_LOGGERS = ("celery.worker.strategy", "celery.app.trace")


class Hub:
    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.soon: list[Callable[[], None]] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.later.append((delay, call))

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)


class Dispatcher:
    enabled = False
    buffer_limit = 24
    flushes = 0
    on_send_buffered: Any = None

    def flush(self) -> None:
        self.flushes += 1


class Consumer:
    def __init__(self, hub: Hub | None) -> None:
        self.hub = hub
        self.event_dispatcher = Dispatcher()


def test_events_gather_and_are_flushed_once_for_all() -> None:
    hub = Hub()
    consumer = Consumer(hub)
    EventBatches(consumer).start(consumer)
    dispatcher = consumer.event_dispatcher
    assert dispatcher.buffer_limit == EVENTS_PER_MESSAGE
    for _ in range(3):
        dispatcher.on_send_buffered()
    ((delay, flush),) = hub.later
    assert 0 < delay <= 0.2
    flush()
    assert dispatcher.flushes == 1
    dispatcher.on_send_buffered()
    assert len(hub.later) == 2, "events that came after the flush wait for one of their own"


def test_events_are_sent_as_kombu_sends_them(stores: Stores) -> None:
    now = datetime.now(UTC)
    started = {"type": "task-started", "uuid": "7", "result": "\u00f6"}
    seen: list[Any] = []
    with redis.Redis.from_url(stores.url) as client, app.connection_for_read(stores.url) as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        with connection.Consumer([receiver.queue], callbacks=[receiver._receive], no_ack=True):
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)  # it subscribes
            producer = EventProducer(client)
            common: dict[str, Any] = {"exchange": "celeryev", "headers": {"hostname": "w@h"}, "retry": False}
            producer.publish([started, {**started, "at": now}], routing_key="task.multi", **common)
            producer.publish({"type": "worker-heartbeat"}, routing_key="worker.heartbeat", **common)
            while len(seen) < 3:
                connection.drain_events(timeout=5)
    assert [event["type"] for event in seen] == ["task-started", "task-started", "worker-heartbeat"]
    assert (seen[0]["result"], seen[1]["at"]) == ("\u00f6", now), "kombu marks a time as one"


def test_without_a_hub_celery_sends_each_event_itself() -> None:
    consumer = Consumer(None)
    EventBatches(consumer).start(consumer)
    assert consumer.event_dispatcher.on_send_buffered is None


def test_an_event_of_another_thread_leaves_the_timer_to_the_hub() -> None:
    hub = Hub()
    consumer = Consumer(hub)
    EventBatches(consumer).start(consumer)
    thread = threading.Thread(target=consumer.event_dispatcher.on_send_buffered)
    thread.start()
    thread.join()
    assert hub.later == []
    (schedule,) = hub.soon
    schedule()
    assert len(hub.later) == 1


def test_every_worker_of_the_application_sends_batches() -> None:
    worker = SimpleNamespace(app=SimpleNamespace(steps={"consumer": set()}))
    install(worker)
    assert worker.app.steps["consumer"] == {EventBatches}
    assert "tasks.worker.events" in app.conf.imports


@pytest.fixture
def task_loggers() -> Iterator[list[logging.Logger]]:
    loggers = [logging.getLogger(name) for name in TASK_LOGGERS]
    yield loggers
    for logger in loggers:
        logger.setLevel(logging.NOTSET)


def test_lines_of_tasks_are_written_at_debug_alone(task_loggers: list[logging.Logger]) -> None:
    keep_quiet_about_tasks(loglevel=logging.INFO)
    for logger in task_loggers:
        assert not logger.isEnabledFor(logging.INFO)
        assert logger.isEnabledFor(logging.ERROR)
    keep_quiet_about_tasks(loglevel=logging.DEBUG)
    assert [logger.level for logger in task_loggers] == [logging.NOTSET] * 2
