"""SIGQUIT at the worst moments of a worker's main thread: the worker ends all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.worker import state
from kombu.asynchronous import Hub, set_event_loop

from tasks.cold_stop import COLD_STOP, stop_cold_between_turns
from tasks.pool_exit import bound_child_exit


@pytest.fixture
def hub() -> Iterator[Hub]:
    usual = {number: signal.getsignal(number) for number in (signal.SIGQUIT, signal.SIGINT)}
    hub = Hub()
    set_event_loop(hub)
    yield hub
    set_event_loop(None)
    hub.close()
    state.should_terminate = None
    for number, handler in usual.items():
        signal.signal(number, handler)


class _Consumer:
    """As much of Celery's consumer and worker as a cold stop asks for."""

    task_consumer = connection = None

    def __init__(self, hub: Hub, pool: AsynPool) -> None:
        self.hub = hub
        self.pool: Any = TaskPool.__new__(TaskPool)
        self.pool._pool = pool
        self.controller = SimpleNamespace(consumer=self, wait_for_soft_shutdown=lambda: None)
        self.accepted: list[int] = []

    def cancel_active_requests(self) -> None:
        for pid in self.accepted:
            self.pool._pool.terminate_job(pid, signal.SIGTERM)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["within an ack", "between header and body", "between turns"])
def test_sigquit_ends_the_pool_wherever_it_comes(hub: Hub, place: str) -> None:
    bound_child_exit()
    pool = AsynPool(processes=1, threads=False, enable_timeouts=True)
    pool.register_with_event_loop(hub)
    consumer = _Consumer(hub, pool)
    stop_cold_between_turns(consumer, limit=3600.0)
    turns = hub.create_loop()
    _turn_until(turns, lambda: bool(pool._fileno_to_outq) and not pool._waiting_to_start)
    time.sleep(0.5)

    def accepted(pid: int, at: float) -> None:
        consumer.accepted.append(pid)
        if place == "within an ack":
            os.kill(os.getpid(), signal.SIGQUIT)

    if place == "between header and body":
        _quit_after_header(pool)
    job = pool.apply_async(time.sleep, (0.5,), accept_callback=accepted, timeout=60, soft_timeout=50)
    if place == "between turns":
        _turn_until(turns, lambda: job._accepted)
        os.kill(os.getpid(), signal.SIGQUIT)
    children = [child.pid for child in pool._pool]
    began = time.monotonic()
    _turn_until(turns, lambda: state.should_terminate is not None)
    assert time.monotonic() - began < 8
    assert all(not _lives(pid) for pid in children)


def _quit_after_header(pool: AsynPool) -> None:
    (child,) = pool._pool
    send = child.send_job_offset

    def send_and_quit(data: memoryview, offset: int) -> int:
        sent: int = send(data, offset)
        if len(data) == 4:
            os.kill(os.getpid(), signal.SIGQUIT)
        return sent

    child.send_job_offset = send_and_quit


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _turn_until(turns: Iterator[None], reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not reached():
        assert time.monotonic() < end
        next(turns)


_DEAF = """
import subprocess, sys, time
from types import SimpleNamespace
from tasks.cold_stop import stop_cold_between_turns
stop_cold_between_turns(SimpleNamespace(hub=SimpleNamespace(on_tick=set())), limit=0.5)
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(30)
def test_a_worker_whose_loop_does_not_turn_ends_with_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", _DEAF], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        worker.send_signal(signal.SIGQUIT)
        assert worker.wait(20) == COLD_STOP
    end = time.monotonic() + 5
    while _lives(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _lives(child)
