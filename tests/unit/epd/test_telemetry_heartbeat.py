"""The heartbeat thread keeps beating despite errors of the store or the worker, and says goodbye."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from epd.contracts.errors import StoreUnavailable
from epd.settings import Settings
from epd.store.records import Heartbeats
from epd.store.values import Heartbeat
from epd.telemetry.heartbeat import HeartbeatThread
from tests.store_kit import Stores


@pytest.fixture
def heartbeats(stores: Stores) -> Heartbeats:
    return stores.open(Settings(heartbeat_ttl=60)).heartbeats


def _wait_until(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def _beat() -> Heartbeat:
    return Heartbeat(name="w", kind="fetch", host="h", pid=1, at=time.time())


def test_a_worker_is_seen_until_it_stops(heartbeats: Heartbeats) -> None:
    thread = HeartbeatThread(heartbeats, _beat, 0.01)
    thread.start()
    _wait_until(lambda: len(heartbeats.alive()) == 1)
    first = heartbeats.alive()[0].at
    _wait_until(lambda: heartbeats.alive()[0].at > first)
    thread.stop()
    assert heartbeats.alive() == []
    thread.stop()


def test_it_goes_on_when_the_store_is_down_and_logs_that_once(
    heartbeats: Heartbeats, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reachable, failures = heartbeats.beat, iter(range(5))

    def beat(heartbeat: Heartbeat) -> None:
        for _ in failures:
            raise StoreUnavailable("down")
        reachable(heartbeat)

    monkeypatch.setattr(heartbeats, "beat", beat)
    with caplog.at_level("INFO"):
        thread = HeartbeatThread(heartbeats, _beat, 0.01)
        thread.start()
        _wait_until(lambda: heartbeats.alive() != [])
        thread.stop()
    assert caplog.text.count("do not reach the store") == 1
    assert caplog.text.count("reach the store again") == 1


def test_a_fault_of_the_worker_does_not_end_it(heartbeats: Heartbeats) -> None:
    calls = iter([ZeroDivisionError(), KeyError("x")])

    def make() -> Heartbeat:
        for fault in calls:
            raise fault
        return _beat()

    thread = HeartbeatThread(heartbeats, make, 0.01)
    thread.start()
    _wait_until(lambda: heartbeats.alive() != [])
    thread.stop()


def test_stopping_what_never_started_is_nothing(heartbeats: Heartbeats) -> None:
    HeartbeatThread(heartbeats, _beat, 0.01).stop()


def test_stopping_does_not_wait_for_the_period(heartbeats: Heartbeats) -> None:
    thread = HeartbeatThread(heartbeats, _beat, 3600)
    thread.start()
    _wait_until(lambda: heartbeats.alive() != [])
    started = time.monotonic()
    thread.stop()
    assert time.monotonic() - started < 2
    assert "heartbeat" not in {running.name for running in threading.enumerate()}
