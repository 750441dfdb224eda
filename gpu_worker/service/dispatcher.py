"""The desk between deliverer and engine: takes messages in, and gives verdicts out.

    host -> accept -> intake thread: parse, admit -> engine -> reply -> host: ack -> release: free the blob

Knows the store, not Celery. Every accepted ticket gets exactly one verdict, unless the worker stops first.
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
from gpu_worker.service.admission import Admission
from gpu_worker.service.results import Reply
from gpu_worker.service.segment_cache import SegmentCache
from gpu_worker.service.tickets import Fate, Ticket, TicketLedger, Verdict
from tasks.flow.context import Context


class Host(Protocol):
    """Called from the desk's and the engine's threads; none of these may block."""

    def is_withdrawn(self, ticket_id: str) -> bool:
        """Whether the deliverer itself does not want this ticket run any more."""
        ...

    def on_begun(self, ticket_ids: Sequence[str]) -> None:
        """These are in a batch that is about to run."""
        ...

    def on_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """These have ended and may be acked; then they are to be released at the desk."""
        ...

    def on_fatal(self, error: BaseException) -> None:
        """This process cannot encode any more."""
        ...


_log = logging.getLogger(__name__)

#: Most messages that are looked at together: a burst or two of the transport.
_INTAKE = 32


_COUNTED = {Fate.EXPIRED: Count.ENCODE_EXPIRED, Fate.CANCELLED: Count.ENCODE_DROPPED}


@dataclass(frozen=True, slots=True)
class _Delivery:
    ticket_id: str
    document: Any


class Desk:
    """The engine's observer, and the host's counterpart. ``open`` it before the first ``accept``."""

    def __init__(
        self, *, context: Context, admission: Admission, reply: Reply, segments: SegmentCache | None = None
    ) -> None:
        self.ledger = TicketLedger()
        self._segments = segments
        self._clock = context.clock
        self._admission = admission
        self._reply = reply
        self._deliveries: queue.SimpleQueue[_Delivery | None] = queue.SimpleQueue()
        self._intake = threading.Thread(target=self._intake_loop, name="encode-intake", daemon=True)
        self._closing = threading.Event()
        self._engine: Engine | None = None
        self._host: Host | None = None

    def open(self, engine: Engine, host: Host) -> None:
        """Connect both sides and start to take messages in."""
        self._engine, self._host = engine, host
        self._intake.start()

    def accept(self, ticket_id: str, document: Any) -> None:
        """Take a message in; never blocks. ``document`` is the message as plain dicts and lists."""
        self._deliveries.put(_Delivery(ticket_id, document))

    def cancel(self, ticket_id: str) -> bool:
        """Drop a ticket that is still queued in the engine."""
        return self._engine is not None and self._engine.cancel(ticket_id)

    def drop(self, document: Mapping[str, Any], reason: DropReason) -> None:
        """End a message that the deliverer has acked already without running it."""
        ticket = self._parsed("dropped", document)
        if isinstance(ticket, Ticket):
            self._count(self._reply.settle([(ticket, Dropped(reason))]))
            self._reply.free_blobs([ticket.message])

    def release(self, ticket_ids: Sequence[str]) -> None:
        """The messages of these were acked: forget them and free their blobs."""
        tickets = [self.ledger.pop(ticket_id) for ticket_id in ticket_ids]
        self._reply.free_blobs([ticket.message for ticket in tickets if ticket is not None])

    def close(self, timeout: float) -> None:
        """Stop to take messages in. What was not looked at yet stays unacked."""
        self._closing.set()
        if self._segments is not None:
            self._segments.stop()
        self._deliveries.put(None)
        if self._intake.is_alive():
            self._intake.join(timeout)

    # intake thread

    def _intake_loop(self) -> None:
        while deliveries := self._next_deliveries():
            if self._closing.is_set():
                return
            try:
                self._take_in(deliveries)
            except Exception:
                _log.exception("%d messages could not be taken in", len(deliveries))
                error = Internal("the encode worker failed; its log tells why")
                self._tell([Verdict(one.ticket_id, Fate.FAILED, error=error) for one in deliveries])

    def _next_deliveries(self) -> list[_Delivery]:
        """Wait for one delivery, and take with it what came meanwhile. Empty: the desk closes."""
        taken = [self._deliveries.get()]
        with suppress(queue.Empty):
            while len(taken) < _INTAKE:
                taken.append(self._deliveries.get_nowait())
        return [] if None in taken else [one for one in taken if one is not None]

    def _take_in(self, deliveries: Sequence[_Delivery]) -> None:
        parsed = [self._parsed(one.ticket_id, one.document) for one in deliveries]
        self._tell([one for one in parsed if isinstance(one, Verdict)])
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

    def _prepare(self, ticket: Ticket, blob: Path) -> None:
        if self._segments is not None and self._segments.concerns(ticket):
            self._segments.prepare(ticket, blob, self._submit_prepared)
        else:
            self._submit(ticket, blob)

    def _submit_prepared(self, ticket: Ticket, blob: Path) -> None:
        """The same, on a thread of the segment cache."""
        try:
            self._submit(ticket, blob)
        except Exception:
            _log.exception("ticket %s could not be queued", ticket.id)
            self._settle([(ticket, Failed(Internal("the encode worker failed; its log tells why")))])

    def _submit(self, ticket: Ticket, blob: Path) -> None:
        """Queue a ticket; one whose rows are all known needs no device."""
        now = self._clock()
        assert self._engine is not None
        ticket = ticket.asked(now)
        self.ledger.put(ticket)
        if ticket.reuse is None or not ticket.reuse.complete:
            self._engine.submit(ticket.slot(blob, now))
        else:
            assert self._host is not None
            self._host.on_begun([ticket.id])
            self._settle([(ticket.begun(now), ticket.reuse.nothing_new())])

    def _parsed(self, ticket_id: str, document: Any) -> Ticket | Verdict:
        try:
            return Ticket(id=ticket_id, message=EncodeMessage.model_validate(document))
        except ValidationError as error:
            _log.error("not an encode message: %s", error)
            return Verdict(ticket_id, Fate.FAILED, error=Internal("not an encode message"))

    # the engine's observer

    def still_wanted(self, slots: Sequence[Slot]) -> set[str]:
        """Asked on the staging thread."""
        assert self._host is not None
        held = [self.ledger.get(slot.id) for slot in slots if not self._host.is_withdrawn(slot.id)]
        return self._admission.still_wanted([ticket for ticket in held if ticket is not None])

    def on_begun(self, slots: Sequence[Slot]) -> None:
        """Pass on, with the time noted."""
        ids = [slot.id for slot in slots]
        self.ledger.begin(ids, self._clock())
        assert self._host is not None
        self._host.on_begun(ids)

    def on_settled(self, settled: Sequence[Settled]) -> None:
        """Make the outcomes known, then let the host ack."""
        tickets = [(self.ledger.get(one.slot.id), one.outcome) for one in settled]
        self._settle([(ticket, outcome) for ticket, outcome in tickets if ticket is not None])

    def on_device_lost(self, error: BaseException) -> None:
        """Only a new process helps."""
        assert self._host is not None
        self._host.on_fatal(error)

    def _settle(self, batch: Sequence[tuple[Ticket, Outcome]]) -> None:
        if self._segments is not None:
            batch = [(ticket, self._segments.joined(ticket, outcome)) for ticket, outcome in batch]
        try:
            verdicts = self._reply.settle(batch)
        except Exception as trouble:
            _log.exception("%d outcomes could not be told", len(batch))
            error = Internal(f"the reply raised {type(trouble).__name__}")
            verdicts = [Verdict(ticket.id, Fate.FAILED, error=error) for ticket, _ in batch]
        self._count(verdicts)
        if self._segments is not None:
            assert self._engine is not None
            self._segments.finish(batch, verdicts, self._engine.counters)
        self._tell(verdicts)

    def _count(self, verdicts: Sequence[Verdict]) -> None:
        """Count what was not encoded because it was late, or because nobody waited for it."""
        assert self._engine is not None
        for verdict in verdicts:
            if verdict.fate in _COUNTED:
                self._engine.counters.add(_COUNTED[verdict.fate])

    def _tell(self, verdicts: Sequence[Verdict]) -> None:
        assert self._host is not None
        if verdicts:
            self._host.on_verdicts(verdicts)
