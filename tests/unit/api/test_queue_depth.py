"""Queue depth: a failed reading, whatever the reason, counts as a broker in trouble."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from api.encode.capacity import QueueDepth
from epd.contracts.errors import StoreUnavailable


@pytest.mark.parametrize("error", [StoreUnavailable("down"), RuntimeError("a bug"), OSError("no socket")])
def test_a_failed_reading_is_trouble_until_one_succeeds(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.encode.capacity.READING_SECONDS", 0.02)
    failing = False

    def count() -> Mapping[str, int]:
        if failing:
            raise error
        return {"fetch": 3}

    depth = QueueDepth(count)
    depth.start()
    try:
        _until(lambda: depth.last_total() == 3)
        failing = True
        _until(lambda: _in_trouble(depth))
        failing = False
        _until(lambda: not _in_trouble(depth) and depth.last_total() == 3)
    finally:
        depth.stop()


def _in_trouble(depth: QueueDepth) -> bool:
    try:
        depth.last_total()
    except StoreUnavailable:
        return True
    return False


def _until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not check():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.02)
