"""Whose call starts next: priorities, jobs in turn, bounds of a job and of a host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future

import pytest

from epd.contracts.job import Priority
from tasks.flow.fair_executor import Bounds, FairExecutor, Turn

INTERACTIVE, BULK = Priority.INTERACTIVE, Priority.BULK


class Gate:
    """Calls that note their name when they start and end when the gate is opened."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.changed = threading.Condition()
        self.open = threading.Event()

    def call(self, name: str, *, blocks: bool = True) -> Callable[[], str]:
        def run() -> str:
            with self.changed:
                self.started.append(name)
                self.changed.notify_all()
            if blocks:
                assert self.open.wait(10)
            return name

        return run

    def wait_for(self, count: int) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.started) >= count, 5)
            return list(self.started)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def turn(job: str, host: str = "a", priority: Priority = INTERACTIVE) -> Turn:
    return Turn(priority, job, host)


def test_results_and_errors_are_those_of_the_call() -> None:
    executor = FairExecutor("work", 2)
    assert executor.submit(turn("j"), lambda: 5).result(5) == 5

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        executor.submit(turn("j"), fail).result(5)
    executor.close()


def test_as_many_calls_run_at_once_as_there_are_threads(gate: Gate) -> None:
    executor = FairExecutor("work", 3)
    for number in range(5):
        executor.submit(turn(f"j{number}"), gate.call(str(number)))
    gate.wait_for(3)
    assert executor.held_back() == 0
    gate.open.set()
    gate.wait_for(5)


def test_a_job_at_its_bound_leaves_threads_to_others(gate: Gate) -> None:
    executor = FairExecutor("work", 4, Bounds(per_job=2, per_host=4))
    for number in range(10):
        executor.submit(turn("slow", f"host{number}"), gate.call("slow"))
    gate.wait_for(2)
    assert executor.held_back() == 8
    executor.submit(turn("other"), gate.call("other", blocks=False)).result(5)


def test_a_host_at_its_bound_leaves_threads_to_others(gate: Gate) -> None:
    executor = FairExecutor("work", 4, Bounds(per_job=4, per_host=2))
    for number in range(10):
        executor.submit(turn(f"job{number}", "slow.test"), gate.call("slow"))
    gate.wait_for(2)
    executor.submit(turn("job", "fast.test"), gate.call("fast", blocks=False)).result(5)
    assert executor.held_back() == 8


def test_jobs_take_turns(gate: Gate) -> None:
    executor = FairExecutor("work", 1)
    first = executor.submit(turn("first"), gate.call("first"))
    gate.wait_for(1)
    futures = [executor.submit(turn("big"), gate.call("big", blocks=False)) for _ in range(20)]
    futures.append(executor.submit(turn("small"), gate.call("small", blocks=False)))
    gate.open.set()
    assert first.result(5) == "first"
    for future in futures:
        future.result(5)
    assert "small" in gate.started[:4]


def test_interactive_calls_go_first_and_bulk_calls_do_not_starve(gate: Gate) -> None:
    executor = FairExecutor("work", 1)
    executor.submit(turn("first"), gate.call("first"))
    gate.wait_for(1)
    futures: list[Future[str]] = []
    for number in range(20):
        futures.append(executor.submit(turn("bulk", priority=BULK), gate.call("bulk", blocks=False)))
        futures.append(executor.submit(turn(f"job{number}"), gate.call("chat", blocks=False)))
    gate.open.set()
    for future in futures:
        future.result(5)
    assert gate.started[1:5] == ["chat"] * 4
    assert "bulk" in gate.started[:10]


def test_bulk_calls_leave_some_threads_free(gate: Gate) -> None:
    executor = FairExecutor("work", 4)
    for number in range(10):
        executor.submit(turn(f"bulk{number}", priority=BULK), gate.call("bulk"))
    gate.wait_for(3)
    executor.submit(turn("chat"), gate.call("chat", blocks=False)).result(5)
    assert gate.started.count("bulk") == 3


def test_what_waits_is_cancelled_when_it_closes(gate: Gate) -> None:
    executor = FairExecutor("work", 1)
    running = executor.submit(turn("a"), gate.call("a"))
    gate.wait_for(1)
    waiting = executor.submit(turn("b"), gate.call("b"))
    executor.close()
    late = executor.submit(turn("c"), gate.call("c"))
    gate.open.set()
    assert running.result(5) == "a"
    for future in (waiting, late):
        with pytest.raises(CancelledError):
            future.result(5)
