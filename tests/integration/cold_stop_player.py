"""A decode worker's pool and loop without a broker, in a process of their own, and SIGQUIT at a bad moment.

``python cold_stop_player.py PLACE``; ends with 0 where the pool and its children ended. Celery leaves signals
ignored behind, which a test process must not hand on to the programs that other tests start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.worker import state
from kombu.asynchronous import Hub, set_event_loop

from tasks.worker.shutdown import bound_child_exit, stop_cold_between_ticks


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


def play(place: str) -> None:
    """SIGQUIT comes at a place; raises ``AssertionError`` where the pool does not end."""
    hub = Hub()
    set_event_loop(hub)
    bound_child_exit()
    pool = AsynPool(processes=1, threads=False, enable_timeouts=True)
    pool.register_with_event_loop(hub)
    consumer = _Consumer(hub, pool)
    stop_cold_between_ticks(consumer, limit=3600.0)
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
    _turn_until(turns, lambda: state.should_terminate is not None)
    assert not any(map(psutil.pid_exists, children))


def _quit_after_header(pool: AsynPool) -> None:
    (child,) = pool._pool
    send = child.send_job_offset

    def send_and_quit(data: memoryview, offset: int) -> int:
        sent: int = send(data, offset)
        if len(data) == 4:
            os.kill(os.getpid(), signal.SIGQUIT)
        return sent

    child.send_job_offset = send_and_quit


def _turn_until(turns: Iterator[None], reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not reached():
        assert time.monotonic() < end
        next(turns)


if __name__ == "__main__":
    play(sys.argv[1])
