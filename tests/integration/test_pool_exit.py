"""A prefork worker that stops just after it handed a child a job ends soon all the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import billiard.pool
import pytest
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub, set_event_loop

from tasks.worker.shutdown import bound_child_exit


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    name = "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT"
    monkeypatch.setattr(billiard.pool, name, billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT)
    hub = Hub()
    set_event_loop(hub)
    yield hub
    set_event_loop(None)
    hub.close()


@pytest.mark.timeout(60)
def test_a_job_forgotten_at_the_stop_does_not_hold_it(hub: Hub) -> None:
    bound_child_exit()
    pool = AsynPool(processes=1, threads=False)
    pool.register_with_event_loop(hub)
    turns = hub.create_loop()
    _turn_until(turns, lambda: bool(pool._fileno_to_outq))
    job = pool.apply_async(time.sleep, (0.2,))
    _turn_until(turns, lambda: job._write_to is not None)
    assert not job._accepted
    began = time.monotonic()
    pool.flush()
    pool.close()
    pool.join()
    assert time.monotonic() - began < 15, "the child waited for a reader that is gone"


def _turn_until(turns: Iterator[None], reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < end
        next(turns)
