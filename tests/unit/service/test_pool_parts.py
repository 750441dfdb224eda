"""The small parts between Celery and the batching pool: times and results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from epd.contracts.errors import EncodeFailed
from gpu_worker.pool.batch_pool import EncodeRequest, parse_time
from gpu_worker.pool.delivery import Delivery, ResultTracer
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


def test_a_result_becomes_the_value_or_the_error_of_its_task() -> None:
    tracer = ResultTracer()
    delivery = Delivery("t/1", None, tracer.body, (), lambda *_: None, lambda *_: None)
    text = tracer.trace(delivery, TaskResult("t/1", TaskStatus.ENCODED, {"tokens": 3, "forward_s": 0.5}))
    assert text == "tokens=3 forward_s=0.5"
    with pytest.raises(EncodeFailed):
        tracer.trace(delivery, TaskResult("t/1", TaskStatus.FAILED, error=EncodeFailed("no")))
