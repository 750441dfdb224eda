"""A Celery request while it is in the batching pool, and the tracer that runs on its result.

Celery's objects are duck-typed here: this module imports neither Celery nor kombu.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
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
