"""The Celery pool that batches: Celery hands it encode tasks, and the encode service runs them together.

Celery keeps the protocol (events, acks, revokes, remote control, links) and the service forms the batches.
Accept and success callbacks, and with them acks and events, run only on the hub's thread, because Celery's
event dispatcher is not thread-safe. A request is traced on a thread of the service, once its result is ready.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.signals import task_revoked, worker_ready
from celery.utils.nodenames import default_nodename
from celery.worker import state
from celery.worker.request import Request

from epd.contracts.errors import EpdError
from gpu_worker.engine.device import DeviceHung
from gpu_worker.engine.slot import DropReason
from gpu_worker.pool.delivery import Delivery, ResultTracer
from gpu_worker.service.encode_service import EncodeService, open_service
from gpu_worker.service.tickets import TaskResult, TaskStatus
from tasks.process import process_context
from tasks.worker.hub_pool import HubPool
from tasks.worker.shutdown import COLD_STOP

_log = logging.getLogger(__name__)

#: The task that is batched. All others run in a small executor.
BATCHED = "epd.encode"

#: Seconds that a warm shutdown waits for the running batch and its results.
_STOP_LIMIT = 60.0
_SIDE_THREADS = 2
#: Seconds for which acked messages are gathered before their blobs are freed together.
_FREE_DELAY = 0.05
#: The exit status after the device was lost: a supervisor starts a new process (sysexits.h: internal error).
_DEVICE_LOST = 70
#: The exit status after a batch that did not end (sysexits.h: temporary failure).
_DEVICE_HUNG = 75
#: Seconds that a process without a usable device waits for its last heartbeat to be sent.
_FINAL_HEARTBEAT_LIMIT = 2.0


class BatchPool(HubPool):
    """A Celery pool whose one slot is a device."""

    #: The warm service. If none was set, starting the pool opens one.
    service: EncodeService | None = None

    def on_start(self) -> None:
        """Attach to the service, and replace the task's body before Celery builds the task's tracer."""
        super().on_start()
        self._deliveries: dict[str, Delivery] = {}
        self._acked: list[str] = []
        self._lock = threading.Lock()
        self._tracer = ResultTracer()
        self._side = ThreadPoolExecutor(_SIDE_THREADS, "pool-side")
        task = self.app.tasks[BATCHED]
        task.run = self._tracer.body
        task.throws = (EpdError,)
        task.Request = EncodeRequest
        task_revoked.connect(self._on_revoked, weak=False, dispatch_uid="epd.pool.revoked")
        worker_ready.connect(self._on_worker_ready, weak=False, dispatch_uid="epd.pool.ready")
        self._service = self.service or open_service(process_context(), name=default_nodename(None))
        self._service.attach(self)

    def _on_worker_ready(self, **_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, _stop_cold)
        self._service.set_ready()

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
            self._side.submit(self._run_task, target, args, kwargs, callback, accept_callback)
            return
        delivery = Delivery.from_apply(target, args, callback, accept_callback)
        with self._lock:
            self._deliveries[delivery.ticket_id] = delivery
        self._service.dispatcher.accept(delivery.ticket_id, delivery.document)

    def _finish(self, traced: Sequence[tuple[Delivery, TaskResult, Any]]) -> None:
        """Report and ack, then have the blobs freed. The hub sends the acks before it waits again."""
        if self._cold:
            return
        for delivery, result, outcome in traced:
            try:
                self._finish_one(delivery, result, outcome)
            except Exception:
                _log.exception("task %s could not be finished", delivery.request.id)
        with self._lock:
            is_first = not self._acked
            self._acked += [delivery.ticket_id for delivery, _, _ in traced]
        if is_first:
            self._side.submit(self._free_acked)

    def _finish_one(self, delivery: Delivery, result: TaskResult, outcome: Any) -> None:
        request = delivery.request
        if request.acknowledged:  # revoked with terminate=True while it ran
            return
        if result.status in (TaskStatus.CANCELLED, TaskStatus.EXPIRED) and request.revoked():
            return
        delivery.report_started()
        delivery.callback(outcome)

    # on the service's threads

    def is_withdrawn(self, ticket_id: str) -> bool:
        """Whether the task was revoked, or its ``expires`` passed, after the pool took it."""
        delivery = self._deliveries.get(ticket_id)
        if delivery is None:
            return True
        request = delivery.request
        return request.id in state.revoked or bool(request.maybe_expire())

    def on_begun(self, ticket_ids: Sequence[str]) -> None:
        """A batch starts to run: report its tasks as started, at the hub's next tick.

        The hub is not woken, since a short batch ends before its events are sent.
        """
        with self._lock:
            begun = [self._deliveries[ticket_id] for ticket_id in ticket_ids if ticket_id in self._deliveries]
        self._mailbox.leave(lambda: _report_started(begun))

    def on_results(self, results: Sequence[TaskResult]) -> None:
        """Trace each request with its result, then finish all of them on the hub's thread."""
        with self._lock:
            known = [(self._deliveries.pop(result.ticket_id, None), result) for result in results]
        traced = [(held, result, self._trace(held, result)) for held, result in known if held is not None]
        self._mailbox.post(lambda: self._finish(traced))

    def _trace(self, delivery: Delivery, result: TaskResult) -> Any:
        try:
            return self._tracer.trace(delivery, result)
        except Exception:
            _log.exception("tracing of %s raised", delivery.request.id)
            return 1, ExceptionInfo(), 0.0

    def on_fatal(self, error: BaseException) -> None:
        """End the process at once. No message was acked, so other workers get the items."""
        _log.critical("the device is lost, this process ends: %s", error)
        self._service.final_heartbeat(_FINAL_HEARTBEAT_LIMIT)
        faulthandler.dump_traceback()  # shows which line hangs
        os._exit(_DEVICE_HUNG if isinstance(error, DeviceHung) else _DEVICE_LOST)

    # on the pool's side threads

    def _free_acked(self) -> None:
        time.sleep(_FREE_DELAY)
        with self._lock:
            acked, self._acked = self._acked, []
        self._service.dispatcher.release(acked)

    def _on_revoked(self, request: Any = None, expired: bool = False, **_: Any) -> None:
        """Celery has acked a message without running it: end its part and pass its flight on."""
        if getattr(request, "task", None) != BATCHED or not request.args:
            return
        reason = DropReason.EXPIRED if expired else DropReason.CANCELLED
        self._side.submit(self._service.dispatcher.drop, request.args[0], reason)

    # shutdown

    def on_stop(self) -> None:
        """Warm shutdown: finish and ack the running batch; the rest goes back when the channel closes.

        Before a cold shutdown Celery calls this inside a signal handler, which may have interrupted this very
        thread while it held a lock. In that case this only sets a flag.
        """
        if state.should_terminate is not None:
            self._cold = True
            return
        self._service.stop(_STOP_LIMIT)
        self._mailbox.drain()
        self._side.shutdown(wait=True)  # its last calls free the blobs of messages that were acked just now
        self._mailbox.drain()

    def on_terminate(self) -> None:
        """Cold shutdown: nothing more is acked, so all messages go back."""
        self._cold = True
        self._service.abandon()
        self._side.shutdown(wait=False, cancel_futures=True)

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), **self._service.info()}


class EncodeRequest(Request):
    """A request that reads its times quickly, which Celery does slowly for each message.

    For the time zone, Celery searches all of its settings; only an ``expires`` without a zone needs it, and
    Celery's publishers write UTC. For the times it uses a general ISO 8601 parser.
    """

    _tzlocal = UTC

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, maybe_iso8601=parse_time, **fields)


def parse_time(text: Any) -> datetime | None:
    """Parse an ISO 8601 time (``datetime.fromisoformat``). A datetime or None is returned unchanged.

    Raises:
        ValueError, TypeError: it is not such a time; Celery then refuses the message.
    """
    return text if text is None or isinstance(text, datetime) else datetime.fromisoformat(text)


def _report_started(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        delivery.report_started()


def _stop_cold(*_: Any) -> None:
    """SIGQUIT: the hub's loop ends the worker at its next turn, within a second.

    Celery's own handler sends events from inside the signal, and blocks for ever if the signal interrupted
    this thread while it was sending others. Nothing has to be cancelled here: all unacked messages go back.
    """
    state.should_terminate = COLD_STOP
