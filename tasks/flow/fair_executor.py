"""An executor whose threads are shared fairly: by priority, by job and by host.

An interactive call starts before every bulk call that waits, but bulk calls never starve. Within a priority,
jobs take turns, so that a job of hundreds of items does not delay another one. Bounds on the running calls of
one job and of one host leave threads free when a server answers slowly, and one on bulk calls leaves some for
interactive ones.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from epd.contracts.job import Priority

#: One start in this many goes to a bulk call, if one waits.
BULK_EVERY = 8

#: The share of the threads that bulk calls may fill.
BULK_SHARE = 0.75

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose call it is. ``host`` is empty for a call that asks no server."""

    priority: Priority
    job_id: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most calls that run at once, of one job and of one host."""

    per_job: int
    per_host: int


@dataclass(frozen=True, slots=True)
class _Call:
    future: Future[Any]
    run: Callable[[], Any]


class FairExecutor:
    """Runs calls on at most ``threads`` threads, which are started when they are needed. Thread-safe."""

    def __init__(self, name: str, threads: int, bounds: Bounds | None = None) -> None:
        """Without ``bounds``, one job and one host may use all threads."""
        self._name = name
        self.threads = threads
        self._bounds = bounds or Bounds(sys.maxsize, sys.maxsize)
        self._most_bulk = max(1, int(threads * BULK_SHARE))
        self._changed = threading.Condition()
        #: Waiting calls by turn, the turn that is next first.
        self._waiting: OrderedDict[Turn, deque[_Call]] = OrderedDict()
        self._jobs: Counter[str] = Counter()
        self._hosts: Counter[str] = Counter()
        self._bulk = 0
        self._starts = 0
        self._queued = 0
        self._alive = 0
        self._idle = 0
        self._closed = False

    def submit(self, turn: Turn, run: Callable[[], Result]) -> Future[Result]:
        """Have a call made in its turn. Its future is cancelled if the executor closes before that."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                future.set_running_or_notify_cancel()
                return future
            self._waiting.setdefault(turn, deque()).append(_Call(future, run))
            self._queued += 1
            if self._queued > self._idle and self._alive < self.threads:
                self._alive += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._alive}", daemon=True).start()
            elif self._idle:
                self._changed.notify()
        return future

    def held_back(self) -> int:
        """How many calls wait because their job or their host has as many running as it may."""
        with self._changed:
            return sum(len(calls) for turn, calls in self._waiting.items() if self._is_held_back(turn))

    def close(self) -> None:
        """Cancel all calls that wait. Running ones end by themselves."""
        with self._changed:
            self._closed = True
            cancelled = [call.future for calls in self._waiting.values() for call in calls]
            self._waiting.clear()
            self._queued = 0
            self._changed.notify_all()
        for future in cancelled:
            future.cancel()
            future.set_running_or_notify_cancel()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            turn, call = taken
            try:
                call.future.set_result(call.run())
            except BaseException as error:
                call.future.set_exception(error)
            finally:
                self._finish(turn)
            del taken, call  # an idle thread keeps no result alive

    def _take(self) -> tuple[Turn, _Call] | None:
        """Wait for the next call that may start; None once the executor is closed."""
        with self._changed:
            while True:
                if self._closed:
                    return None
                turn = self._next_turn()
                if turn is not None:
                    break
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            calls = self._waiting[turn]
            call = calls.popleft()
            if calls:
                self._waiting.move_to_end(turn)
            else:
                del self._waiting[turn]
            self._queued -= 1
            self._jobs[turn.job_id] += 1
            self._hosts[turn.host] += bool(turn.host)
            self._bulk += turn.priority is Priority.BULK
            self._starts += 1
            call.future.set_running_or_notify_cancel()
            return turn, call

    def _finish(self, turn: Turn) -> None:
        with self._changed:
            for counter, name in ((self._jobs, turn.job_id), (self._hosts, turn.host)):
                counter[name] -= 1
                if counter[name] <= 0:
                    del counter[name]
            self._bulk -= turn.priority is Priority.BULK
            if self._waiting and self._idle:
                self._changed.notify()

    def _next_turn(self) -> Turn | None:
        """The turn whose call starts next; None if every call that waits has to wait longer."""
        first = Priority.BULK if self._starts % BULK_EVERY == BULK_EVERY - 1 else Priority.INTERACTIVE
        other: Turn | None = None
        for turn in self._waiting:
            if turn.priority is Priority.BULK and self._bulk >= self._most_bulk:
                continue
            if self._is_held_back(turn):
                continue
            if turn.priority is first:
                return turn
            other = other or turn
        return other

    def _is_held_back(self, turn: Turn) -> bool:
        bounds = self._bounds
        at_bound = bool(turn.host) and self._hosts[turn.host] >= bounds.per_host
        return at_bound or self._jobs[turn.job_id] >= bounds.per_job
