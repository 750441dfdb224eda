"""One Celery request on its way through the batching pool. Duck-typed: Celery is not imported here."""

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

from gpu_worker.service.tickets import Verdict

_numbers = itertools.count()


@dataclass(slots=True)
class Delivery:
    """A request with what Celery wants called for it.

    ``target`` is Celery's tracer and ``arguments`` what it is called with, the body decoded. ``accept``
    tells that the work begins and ``callback`` that it ended; both are for the hub's thread alone.
    """

    ticket_id: str
    request: Any
    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    accept: Callable[[int, float], None]
    callback: Callable[[Any], None]
    accepted: bool = False

    @classmethod
    def of(cls, target: Callable[..., Any], args: Any, callback: Any, accept_callback: Any) -> Delivery:
        """From what a pool's ``on_apply`` is given; the message's body is decoded once, by the request."""
        request = callback.__self__
        name, task_id, headers, *_ = args
        decoded = (name, task_id, headers, request.message.payload, None, None)
        ticket_id = f"{task_id}/{next(_numbers)}"
        return cls(ticket_id, request, target, decoded, accept_callback, callback)

    @property
    def document(self) -> Any:
        """The message: the task's only positional argument. None when it has none."""
        (args, _kwargs, _embed) = self.arguments[3]
        return args[0] if args else None

    def begin(self) -> None:
        """Tell Celery that the work has begun; once."""
        if not self.accepted:
            self.accepted = True
            self.accept(os.getpid(), time.monotonic())


class ReadyOutcome:
    """The task's body in the batching pool: it returns, or raises, the verdict that is ready.

    Celery's tracer calls it, so that links, errbacks, signals and events come as with any other task.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def run(self, delivery: Delivery, verdict: Verdict) -> Any:
        """Trace a delivery on this thread; returns what Celery's callback wants."""
        self._local.verdict = verdict
        return delivery.target(*delivery.arguments)

    def body(self, *_args: Any, **_kwargs: Any) -> str:
        """Takes the place of the task's ``run``.

        The summary is a line of text: Celery makes a text of every result for its events, and takes ten
        times as long for a dictionary.
        """
        verdict: Verdict = self._local.verdict
        if verdict.error is not None:
            raise verdict.error
        return verdict.text


_log = logging.getLogger(__name__)


class HubMailbox:
    """A first-in-first-out list of calls that one thread makes.

    kombu's hub keeps its callbacks in a set, so it promises no order; an item's start and its end have one.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._hub: Any = None

    def connect(self, hub: Any) -> None:
        """Have the hub (kombu's event loop) make the calls; again after each reconnect."""
        self._hub = hub
        hub.call_soon(self.drain)

    def post(self, call: Callable[[], None]) -> None:
        """Leave a call; wakes the hub."""
        self._calls.append(call)
        if self._hub is not None:
            self._hub.call_soon(self.drain)

    def drain(self) -> None:
        """Make all calls that are there. What one raises is logged: the others are not its business."""
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call()
            except Exception:
                _log.exception("a call on the hub's thread raised")

    def nudge(self) -> None:
        """From another thread: end the hub's wait, so that it runs what its own callbacks put off.

        A callback that the hub's thread adds while it runs callbacks waits for the next poll to return.
        """
        if self._hub is not None:
            self._hub.call_soon(_nothing)


def _nothing() -> None:
    """Being called is all."""
