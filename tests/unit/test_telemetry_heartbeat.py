"""The heartbeat thread beats on, whatever the store or the worker does, and says goodbye."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from epd.contracts.errors import StoreUnavailable
from epd.store.base import Heartbeat
from epd.store.memory.records import MemoryHeartbeats
from epd.telemetry.heartbeat import HeartbeatThread


def _wait_until(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def _beat() -> Heartbeat:
    return Heartbeat(name="w", kind="fetch", host="h", pid=1, at=time.time())


class _DownAtFirst(MemoryHeartbeats):
    """A store that is down for the first beats."""

    def __init__(self, failures: int) -> None:
        super().__init__(ttl=5)
        self.failures = failures

    def beat(self, heartbeat: Heartbeat) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise StoreUnavailable("down")
        super().beat(heartbeat)


def test_a_worker_is_seen_until_it_stops() -> None:
    heartbeats = MemoryHeartbeats(ttl=5)
    thread = HeartbeatThread(heartbeats, _beat, 0.01).start()
    _wait_until(lambda: len(heartbeats.alive()) == 1)
    first = heartbeats.alive()[0].at
    _wait_until(lambda: heartbeats.alive()[0].at > first)
    thread.stop()
    assert heartbeats.alive() == []
    thread.stop()


def test_it_goes_on_when_the_store_is_down_and_logs_that_once(caplog: pytest.LogCaptureFixture) -> None:
    heartbeats = _DownAtFirst(failures=5)
    with caplog.at_level("INFO"):
        thread = HeartbeatThread(heartbeats, _beat, 0.01).start()
        _wait_until(lambda: heartbeats.alive() != [])
        thread.stop()
    assert caplog.text.count("do not reach the store") == 1
    assert caplog.text.count("reach the store again") == 1


def test_a_fault_of_the_worker_does_not_end_it() -> None:
    heartbeats, calls = MemoryHeartbeats(ttl=5), iter([ZeroDivisionError(), KeyError("x")])

    def make() -> Heartbeat:
        for fault in calls:
            raise fault
        return _beat()

    thread = HeartbeatThread(heartbeats, make, 0.01).start()
    _wait_until(lambda: heartbeats.alive() != [])
    thread.stop()


def test_stopping_what_never_started_is_nothing() -> None:
    HeartbeatThread(MemoryHeartbeats(ttl=5), _beat, 0.01).stop()


def test_stopping_does_not_wait_for_the_period() -> None:
    heartbeats = MemoryHeartbeats(ttl=500)
    thread = HeartbeatThread(heartbeats, _beat, 3600).start()
    _wait_until(lambda: heartbeats.alive() != [])
    started = time.monotonic()
    thread.stop()
    assert time.monotonic() - started < 2
    assert "heartbeat" not in {running.name for running in threading.enumerate()}
