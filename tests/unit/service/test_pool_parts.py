"""The small parts between Celery and the batching pool: times, events, results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu.serialization import dumps as kombu_dumps
from kombu.serialization import loads as kombu_loads
from kombu.utils.json import loads

from epd.contracts.errors import EncodeFailed
from gpu_worker.pool.batch_pool import EncodeRequest, parse_time
from gpu_worker.pool.delivery import Delivery, ResultTracer
from gpu_worker.pool.worker import EVENT_SERIALIZER, EVENTS_PER_MESSAGE, EventBatches, event_text
from gpu_worker.service.tickets import TaskResult, TaskStatus


def test_times_are_read_as_celery_writes_them() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=5)
    assert parse_time(soon.isoformat()) == soon
    assert parse_time("2030-01-02T03:04:05Z") == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert parse_time(soon) is soon
    assert parse_time(None) is None
    with pytest.raises(ValueError, match="soon"):
        parse_time("soon")
    assert EncodeRequest._tzlocal is UTC


class Hub:
    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.later.append((delay, call))


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


def test_a_result_becomes_the_value_or_the_error_of_its_task() -> None:
    tracer = ResultTracer()
    delivery = Delivery("t/1", None, tracer.body, (), lambda *_: None, lambda *_: None)
    text = tracer.trace(delivery, TaskResult("t/1", TaskStatus.ENCODED, {"tokens": 3, "forward_s": 0.5}))
    assert text == "tokens=3 forward_s=0.5"
    with pytest.raises(EncodeFailed):
        tracer.trace(delivery, TaskResult("t/1", TaskStatus.FAILED, error=EncodeFailed("no")))
