"""A Celery request while it is in the batching pool, and the calls that the hub's thread makes for it.

Celery's objects are duck-typed here: this module imports neither Celery nor kombu.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_worker.service.tickets import TaskResult

_log = logging.getLogger(__name__)

#: Make ticket ids unique in this process, even when a message is delivered twice.
_numbers = itertools.count()


@dataclass(slots=True)
class Delivery:
    """A request and what Celery wants called for it.

    ``target`` is Celery's tracer and ``arguments`` are its arguments, with the message's body decoded.
    ``accept`` reports that the task has started and ``callback`` that it has ended. Only the hub's thread may
    call these two.
    """

    ticket_id: str
    request: Any
    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    accept: Callable[[int, float], None]
    callback: Callable[[Any], None]
    accepted: bool = False

    @classmethod
    def from_apply(
        cls, target: Callable[..., Any], args: Any, callback: Any, accept_callback: Any
    ) -> Delivery:
        """Build it from the arguments of a pool's ``on_apply``. The message's body is decoded only once."""
        request = callback.__self__
        name, task_id, headers, *_ = args
        arguments = (name, task_id, headers, request.message.payload, None, None)
        ticket_id = f"{task_id}/{next(_numbers)}"
        return cls(ticket_id, request, target, arguments, accept_callback, callback)

    @property
    def document(self) -> Any:
        """The encode message: the task's only positional argument, or None when it has none."""
        (args, _kwargs, _embed) = self.arguments[3]
        return args[0] if args else None

    def report_started(self) -> None:
        """Report to Celery that the task has started. Later calls do nothing."""
        if not self.accepted:
            self.accepted = True
            self.accept(os.getpid(), time.monotonic())


class ResultTracer:
    """Runs Celery's tracer on results that are ready.

    The tracer calls the task's body, which returns or raises such a result. Links, errbacks, signals and
    events therefore work as for any other task. Thread-safe.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def trace(self, delivery: Delivery, result: TaskResult) -> Any:
        """Trace a delivery on this thread, and return the value for ``delivery.callback``."""
        self._local.result = result
        return delivery.target(*delivery.arguments)

    def body(self, *_args: Any, **_kwargs: Any) -> str:
        """Replace the task's ``run``: return the summary of the result, or raise its error.

        The summary is a line of text because Celery formats every result for its events, which takes ten
        times as long for a dictionary.
        """
        result: TaskResult = self._local.result
        if result.error is not None:
            raise result.error
        return result.text


class HubMailbox:
    """Calls for the hub's thread, made in the order in which they were posted.

    kombu's hub (its event loop) keeps callbacks in a set and so promises no order, but a task has to start
    before it ends.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._hub: Any = None

    def connect(self, hub: Any) -> None:
        """Have this hub make the calls. Call it again after each reconnect."""
        self._hub = hub
        hub.call_soon(self.drain)

    def post(self, call: Callable[[], None]) -> None:
        """Add a call and wake the hub."""
        self._calls.append(call)
        if self._hub is not None:
            self._hub.call_soon(self.drain)

    def drain(self) -> None:
        """Make all pending calls. An exception is logged and does not affect the other calls."""
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call()
            except Exception:
                _log.exception("a call on the hub's thread raised")

    def wake(self) -> None:
        """End the hub's current poll, from another thread.

        A callback that the hub's thread adds while it runs callbacks waits until the next poll returns.
        """
        if self._hub is not None:
            self._hub.call_soon(_nothing)


def _nothing() -> None:
    """A callback whose only purpose is to end a poll."""
