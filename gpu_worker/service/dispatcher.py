"""The dispatcher between deliverer and engine: it takes messages in and gives results out.

    deliverer -> accept -> intake thread: parse, admit -> engine -> write results -> deliverer: ack -> release

Releasing frees the blob. The dispatcher knows the store, not Celery. Every accepted ticket gets exactly one
result, unless the worker stops first.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from epd.contracts.errors import Internal
from epd.contracts.messages import EncodeMessage
from epd.telemetry.counters import Count
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.slot import Dropped, DropReason, Failed, Outcome, Settled, Slot
from gpu_worker.service.results import ResultWriter
from gpu_worker.service.segment_cache import SegmentCache
from gpu_worker.service.tickets import Admission, TaskResult, TaskStatus, Ticket, TicketLedger
from tasks.flow.context import Context

_log = logging.getLogger(__name__)

#: The most messages that are admitted together: a burst or two of the transport.
_INTAKE = 32

_COUNTED = {TaskStatus.EXPIRED: Count.ENCODE_EXPIRED, TaskStatus.CANCELLED: Count.ENCODE_DROPPED}


class Deliverer(Protocol):
    """Delivers and acks messages. Called on the dispatcher's and the engine's threads; must not block."""

    def is_withdrawn(self, ticket_id: str) -> bool:
        """Whether the deliverer no longer wants this ticket run."""
        ...

    def on_begun(self, ticket_ids: Sequence[str]) -> None:
        """These tickets are in a batch that is about to run."""
        ...

    def on_results(self, results: Sequence[TaskResult]) -> None:
        """These tickets have ended: ack their messages, then call ``Dispatcher.release``."""
        ...

    def on_fatal(self, error: BaseException) -> None:
        """This process cannot encode any more."""
        ...


@dataclass(frozen=True, slots=True)
class _Accepted:
    ticket_id: str
    document: Any


class Dispatcher:
    """The engine's observer. Call ``open`` before the first ``accept``."""

    def __init__(
        self,
        *,
        context: Context,
        admission: Admission,
        writer: ResultWriter,
        segments: SegmentCache | None = None,
    ) -> None:
        self.ledger = TicketLedger()
        self._segments = segments
        self._clock = context.clock
        self._admission = admission
        self._writer = writer
        self._accepted: queue.SimpleQueue[_Accepted | None] = queue.SimpleQueue()
        self._intake = threading.Thread(target=self._intake_loop, name="encode-intake", daemon=True)
        self._closing = threading.Event()
        self._engine: Engine | None = None
        self._deliverer: Deliverer | None = None

    def open(self, engine: Engine, deliverer: Deliverer) -> None:
        """Connect both sides and start to take messages in."""
        self._engine, self._deliverer = engine, deliverer
        self._intake.start()

    def accept(self, ticket_id: str, document: Any) -> None:
        """Take a message in; never blocks. ``document`` is the message as plain dicts and lists."""
        self._accepted.put(_Accepted(ticket_id, document))

    def cancel(self, ticket_id: str) -> bool:
        """Drop a ticket that is still queued in the engine."""
        return self._engine is not None and self._engine.cancel(ticket_id)

    def drop(self, document: Mapping[str, Any], reason: DropReason) -> None:
        """End a message that the deliverer has acked without running it."""
        ticket = self._parse("dropped", document)
        if isinstance(ticket, Ticket):
            self._count(self._writer.settle([(ticket, Dropped(reason))]))
            self._writer.free_blobs([ticket.message])

    def release(self, ticket_ids: Sequence[str]) -> None:
        """Forget tickets whose messages were acked, and free their blobs."""
        tickets = [self.ledger.pop(ticket_id) for ticket_id in ticket_ids]
        self._writer.free_blobs([ticket.message for ticket in tickets if ticket is not None])

    def close(self, timeout: float) -> None:
        """Stop taking messages in. Messages that were not parsed yet stay unacked."""
        self._closing.set()
        if self._segments is not None:
            self._segments.stop()
        self._accepted.put(None)
        if self._intake.is_alive():
            self._intake.join(timeout)

    # on the intake thread

    def _intake_loop(self) -> None:
        while accepted := self._next_accepted():
            if self._closing.is_set():
                return
            try:
                self._take_in(accepted)
            except Exception:
                _log.exception("%d messages could not be taken in", len(accepted))
                error = Internal("the encode worker failed; its log tells why")
                self._report([TaskResult(one.ticket_id, TaskStatus.FAILED, error=error) for one in accepted])

    def _next_accepted(self) -> list[_Accepted]:
        """Wait for one message, and return it with all that are queued. Empty when the dispatcher closes."""
        taken = [self._accepted.get()]
        with suppress(queue.Empty):
            while len(taken) < _INTAKE:
                taken.append(self._accepted.get_nowait())
        return [] if None in taken else [one for one in taken if one is not None]

    def _take_in(self, accepted: Sequence[_Accepted]) -> None:
        parsed = [self._parse(one.ticket_id, one.document) for one in accepted]
        self._report([one for one in parsed if isinstance(one, TaskResult)])
        tickets = [one for one in parsed if isinstance(one, Ticket)]
        for ticket in tickets:
            self.ledger.put(ticket)
        admitted = list(zip(tickets, self._admission.admit(tickets), strict=True))
        for ticket, answer in admitted:
            if isinstance(answer, Path):
                self._prepare(ticket, answer)
        ended = [(ticket, answer) for ticket, answer in admitted if not isinstance(answer, Path)]
        if ended:
            self._settle(ended)

    def _parse(self, ticket_id: str, document: Any) -> Ticket | TaskResult:
        try:
            return Ticket(id=ticket_id, message=EncodeMessage.model_validate(document))
        except ValidationError as error:
            _log.error("not an encode message: %s", error)
            return TaskResult(ticket_id, TaskStatus.FAILED, error=Internal("not an encode message"))

    def _prepare(self, ticket: Ticket, blob: Path) -> None:
        if self._segments is not None and self._segments.applies_to(ticket):
            self._segments.prepare(ticket, blob, self._submit_prepared)
        else:
            self._submit(ticket, blob)

    def _submit_prepared(self, ticket: Ticket, blob: Path) -> None:
        """Queue a ticket from a thread of the segment cache, where nobody else handles exceptions."""
        try:
            self._submit(ticket, blob)
        except Exception:
            _log.exception("ticket %s could not be queued", ticket.id)
            self._settle([(ticket, Failed(Internal("the encode worker failed; its log tells why")))])

    def _submit(self, ticket: Ticket, blob: Path) -> None:
        """Queue a ticket in the engine; one whose rows are all cached ends here, without the device."""
        now = self._clock()
        assert self._engine is not None
        ticket = ticket.checked(now)
        self.ledger.put(ticket)
        if ticket.reuse is None or not ticket.reuse.complete:
            self._engine.submit(ticket.slot(blob, now))
        else:
            assert self._deliverer is not None
            self._deliverer.on_begun([ticket.id])
            self._settle([(ticket.begun(now), ticket.reuse.without_forward())])

    # as the engine's observer, on its threads

    def still_wanted(self, slots: Sequence[Slot]) -> set[str]:
        """The ids of the slots to run: not withdrawn by the deliverer, and still wanted by the store."""
        assert self._deliverer is not None
        tickets = [self.ledger.get(slot.id) for slot in slots if not self._deliverer.is_withdrawn(slot.id)]
        return self._admission.still_wanted([ticket for ticket in tickets if ticket is not None])

    def on_begun(self, slots: Sequence[Slot]) -> None:
        """Note the time and inform the deliverer."""
        ids = [slot.id for slot in slots]
        self.ledger.begin(ids, self._clock())
        assert self._deliverer is not None
        self._deliverer.on_begun(ids)

    def on_settled(self, settled: Sequence[Settled]) -> None:
        """Write the outcomes to the store, then let the deliverer ack."""
        tickets = [(self.ledger.get(one.slot.id), one.outcome) for one in settled]
        self._settle([(ticket, outcome) for ticket, outcome in tickets if ticket is not None])

    def on_device_lost(self, error: BaseException) -> None:
        """Have the deliverer end this process: only a new one can use the device again."""
        assert self._deliverer is not None
        self._deliverer.on_fatal(error)

    # on all of these threads

    def _settle(self, batch: Sequence[tuple[Ticket, Outcome]]) -> None:
        if self._segments is not None:
            batch = [(ticket, self._segments.join(ticket, outcome)) for ticket, outcome in batch]
        try:
            results = self._writer.settle(batch)
        except Exception as raised:
            _log.exception("%d outcomes could not be written", len(batch))
            error = Internal(f"writing the outcomes raised {type(raised).__name__}")
            results = [TaskResult(ticket.id, TaskStatus.FAILED, error=error) for ticket, _ in batch]
        self._count(results)
        if self._segments is not None:
            assert self._engine is not None
            self._segments.finish(batch, results, self._engine.counters)
        self._report(results)

    def _count(self, results: Sequence[TaskResult]) -> None:
        """Count messages that were not encoded because they were late or no longer wanted."""
        assert self._engine is not None
        for result in results:
            if result.status in _COUNTED:
                self._engine.counters.add(_COUNTED[result.status])

    def _report(self, results: Sequence[TaskResult]) -> None:
        assert self._deliverer is not None
        if results:
            self._deliverer.on_results(results)
