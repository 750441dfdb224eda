"""The batching pool: the only door between Celery and the encode service.

Celery keeps the protocol (events, acks, revokes, remote control, links), the service packs. Accept and
success callbacks, and with them acks and events, run on the hub's thread only, since Celery's event
dispatcher is not thread-safe; each request is traced on the service's threads with its outcome ready.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool, apply_target
from celery.signals import task_revoked, worker_ready
from celery.utils.nodenames import default_nodename
from celery.worker import state

from epd.contracts.errors import EpdError
from gpu_worker.engine.device import DeviceHung
from gpu_worker.engine.slot import DropReason
from gpu_worker.pool.celery_ext import EncodeRequest
from gpu_worker.pool.delivery import Delivery, HubMailbox, ReadyOutcome
from gpu_worker.service.service import EncodeService, open_service
from gpu_worker.service.tickets import Fate, Verdict
from tasks.process import process_context

_log = logging.getLogger(__name__)

#: The task that is batched; every other one runs in a small executor.
BATCHED = "epd.encode"

#: Seconds that a warm shutdown waits for the running batch and its replies.
_STOP_LIMIT = 60.0
_SIDE_THREADS = 2
#: The status after the device was lost: a supervisor starts a new process (sysexits.h: internal error).
_DEVICE_LOST = 70
#: The status after a batch that did not end (sysexits.h: temporary failure).
_DEVICE_HUNG = 75
#: Seconds for the heartbeat that tells of it.
_LAST_WORDS = 2.0
#: The status of Celery's cold shutdown.
COLD_STOP = 1


class BatchPool(BasePool):
    """A Celery pool whose one slot is a device."""

    body_can_be_buffer = True
    signal_safe = False
    uses_semaphore = False
    task_join_will_block = True

    limit: int

    #: The warm service; where none was prepared, starting the pool opens one.
    service: EncodeService | None = None

    def on_start(self) -> None:
        """Attach to the service. The task's body is replaced before Celery builds its tracer."""
        self._deliveries: dict[str, Delivery] = {}
        self._lock = threading.Lock()
        self._mailbox = HubMailbox()
        self._outcome = ReadyOutcome()
        self._side = ThreadPoolExecutor(_SIDE_THREADS, "pool-side")
        self._cold = False
        task = self.app.tasks[BATCHED]
        task.run = self._outcome.body
        task.throws = (EpdError,)
        task.Request = EncodeRequest
        task_revoked.connect(self._on_revoked, weak=False, dispatch_uid="epd.pool.revoked")
        worker_ready.connect(self._on_worker_ready, weak=False, dispatch_uid="epd.pool.ready")
        self._service = self._opened()
        self._service.attach(self)

    def _opened(self) -> EncodeService:
        if self.service is not None:
            return self.service
        return open_service(process_context(), name=default_nodename(None))

    def _on_worker_ready(self, **_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, _stop_cold)
        self._service.set_ready()

    def register_with_event_loop(self, loop: Any) -> None:
        """Called by Celery at each (re)connection."""
        self._mailbox.connect(loop)

    # on the hub's thread

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> None:
        """Take one request. Never blocks."""
        if not args or args[0] != BATCHED or not hasattr(callback, "__self__"):
            self._side.submit(self._run_aside, target, args, kwargs, callback, accept_callback)
            return
        delivery = Delivery.of(target, args, callback, accept_callback)
        with self._lock:
            self._deliveries[delivery.ticket_id] = delivery
        self._service.desk.accept(delivery.ticket_id, delivery.document)

    def _finish(self, ended: Sequence[tuple[Delivery, Verdict, Any]]) -> None:
        """Report and ack, then have the blobs freed."""
        if self._cold:
            return
        for delivery, verdict, traced in ended:
            try:
                self._finish_one(delivery, verdict, traced)
            except Exception:
                _log.exception("task %s could not be finished", delivery.request.id)
        self._side.submit(self._after_finish, [delivery.ticket_id for delivery, _, _ in ended])

    def _finish_one(self, delivery: Delivery, verdict: Verdict, traced: Any) -> None:
        request = delivery.request
        if request.acknowledged:  # revoked with terminate=True while it ran
            return
        if verdict.fate in (Fate.CANCELLED, Fate.EXPIRED) and request.revoked():
            return
        delivery.begin()
        delivery.callback(traced)

    # from the service's threads

    def is_withdrawn(self, ticket_id: str) -> bool:
        """Whether the task was revoked, or its ``expires`` passed, after it was handed to the pool."""
        delivery = self._deliveries.get(ticket_id)
        if delivery is None:
            return True
        request = delivery.request
        return request.id in state.revoked or bool(request.maybe_expire())

    def on_begun(self, ticket_ids: Sequence[str]) -> None:
        """A batch begins: its tasks are started."""
        with self._lock:
            begun = [self._deliveries[one] for one in ticket_ids if one in self._deliveries]
        self._mailbox.post(lambda: _begin_all(begun))

    def on_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Trace each request with its outcome, then finish them on the hub's thread."""
        with self._lock:
            known = [(self._deliveries.pop(one.ticket_id, None), one) for one in verdicts]
        ended = [(held, verdict, self._traced(held, verdict)) for held, verdict in known if held is not None]
        self._mailbox.post(lambda: self._finish(ended))

    def _traced(self, delivery: Delivery, verdict: Verdict) -> Any:
        try:
            return self._outcome.run(delivery, verdict)
        except Exception:
            _log.exception("tracing of %s raised", delivery.request.id)
            return 1, ExceptionInfo(), 0.0

    def on_fatal(self, error: BaseException) -> None:
        """End the process at once: nothing was acked, so every item goes to another worker."""
        _log.critical("the device is lost, this process ends: %s", error)
        self._service.last_words(_LAST_WORDS)
        faulthandler.dump_traceback()  # which line hangs
        os._exit(_DEVICE_HUNG if isinstance(error, DeviceHung) else _DEVICE_LOST)

    # aside

    def _after_finish(self, ticket_ids: Sequence[str]) -> None:
        self._mailbox.nudge()
        self._service.desk.release(ticket_ids)

    def _run_aside(self, target: Any, args: Any, kwargs: Any, callback: Any, accept_callback: Any) -> None:
        """A task that is not batched, with its callbacks on the hub's thread too."""

        def on_hub(call: Callable[..., Any], *values: Any) -> None:
            self._mailbox.post(lambda: call(*values))

        try:
            apply_target(target, args, kwargs, partial(on_hub, callback), partial(on_hub, accept_callback))
        except Exception:
            einfo = ExceptionInfo()
            self._mailbox.post(lambda: callback((1, einfo, 0.0)))
        self._mailbox.nudge()

    def _on_revoked(self, request: Any = None, expired: bool = False, **_: Any) -> None:
        """Celery has acked a message without running it: end its part, and pass its flight on."""
        if getattr(request, "task", None) != BATCHED or not request.args:
            return
        reason = DropReason.EXPIRED if expired else DropReason.CANCELLED
        self._side.submit(self._service.desk.drop, request.args[0], reason)

    # remote control and shutdown

    def grow(self, n: int = 1) -> None:
        """Celery raises the prefetch by as many; the device is one whatever the number says."""
        self.limit += n

    def shrink(self, n: int = 1) -> None:
        """The reverse of ``grow``; one stays."""
        self.limit = max(1, self.limit - n)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """A running batch cannot be interrupted; the revoked task's result is dropped when it comes."""
        _log.debug("a running batch is not interrupted")

    def on_stop(self) -> None:
        """Warm shutdown: finish the running batch, ack it; the rest goes back when the channel closes.

        On its way to a cold shutdown Celery calls this inside a signal handler, which may have interrupted
        this very thread while it held a lock: then nothing is done here but to note it.
        """
        if state.should_terminate is not None:
            self._cold = True
            return
        self._service.stop(_STOP_LIMIT)
        self._mailbox.drain()
        self._side.shutdown(wait=True)  # among the last calls: blobs of what was acked just now are freed
        self._mailbox.drain()

    def on_terminate(self) -> None:
        """Cold shutdown: nothing more is acked, so everything goes back."""
        self._cold = True
        self._service.abandon()
        self._side.shutdown(wait=False, cancel_futures=True)

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), **self._service.info()}


def _begin_all(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        delivery.begin()


def _stop_cold(*_: Any) -> None:
    """SIGQUIT: the loop ends the worker at its next turn, within a second.

    Celery's own handler sends events from inside the signal, and waits for ever where the signal came
    while this thread was sending others. Here there is nothing to cancel: all that is unacked goes back.
    """
    state.should_terminate = COLD_STOP
