"""The watchdog over device work: it tells once of what hangs, and leaves alone what was frozen."""

from __future__ import annotations

import threading
import time

from gpu_worker.engine.watchdog import Watchdog

LIMIT = 0.2


def test_work_that_never_ends_is_reported_once_by_name() -> None:
    reported: list[str] = []
    barked = threading.Event()
    dog = Watchdog(LIMIT, lambda sentence: (reported.append(sentence), barked.set()))  # type: ignore[func-returns-value]
    dog.start()
    with dog.watch("a batch of 3 for eye"):
        assert barked.wait(10)
        time.sleep(2 * LIMIT)
    dog.stop()
    assert len(reported) == 1
    assert reported[0].startswith("a batch of 3 for eye has not ended after")


def test_many_short_works_are_never_one_long_one() -> None:
    reported: list[str] = []
    dog = Watchdog(1.0, reported.append)
    dog.start()
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        with dog.watch("a batch"):
            time.sleep(0.01)
    dog.stop()
    assert reported == []


def test_an_error_ends_the_work_too() -> None:
    reported: list[str] = []
    dog = Watchdog(LIMIT, reported.append)
    try:
        with dog.watch("a batch"):
            raise ValueError("bad")
    except ValueError:
        pass
    assert all(dog._hung_after(LIMIT) is None for _ in range(100))


def test_the_time_in_which_the_process_was_frozen_does_not_count() -> None:
    dog = Watchdog(8.0, lambda _: None)
    with dog.watch("a batch"):
        assert dog._hung_after(3600.0) is None
        assert any(dog._hung_after(1.0) for _ in range(8)), "its own turns do count"
