"""What a worker says about its tasks: events in batches, and log lines of failures alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.serialization import dumps as kombu_dumps
from kombu.serialization import loads as kombu_loads
from kombu.utils.json import loads

from tasks.celery import app
from tasks.worker.events import (
    EVENT_SERIALIZER,
    EVENTS_PER_MESSAGE,
    EventBatches,
    event_text,
    install,
    keep_quiet_about_tasks,
)

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


def test_events_are_written_as_kombu_reads_them() -> None:
    events = [{"type": "task-started", "uuid": "7", "clock": 3, "timestamp": 1.5, "result": "\u00f6"}]
    content_type, encoding, body = kombu_dumps(events, serializer=EVENT_SERIALIZER)
    assert (content_type, encoding) == ("application/json", "utf-8")
    assert kombu_loads(body, content_type, encoding, accept={"application/json"}) == events
    now = datetime.now(UTC)
    assert loads(event_text([{"at": now}])) == [{"at": now}], "kombu marks a time as one"


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
