"""One encode message in this worker, from its delivery to its ack: its ticket, lease and result."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import BlobMissing, EncoderNotReady, EpdError, StoreUnavailable
from epd.contracts.job import PartId, Stage
from epd.contracts.messages import EncodeMessage
from epd.identity import encoder_identity
from epd.processes import PeriodicThread, log_failure
from epd.store.flights import Flights
from gpu_worker.engine.slot import Dropped, DropReason, Failed, Slot
from gpu_worker.service.segment_reuse import SegmentReuse
from tasks.flow.context import Context

_log = logging.getLogger(__name__)

#: Renewals of a lease before it runs out, so that a failed one does no harm.
_RENEWALS_PER_LEASE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """An encode message in this worker. Both times are Unix seconds, and 0 until they are known.

    Attributes:
        id: unique in this process, unlike the message, which may be delivered twice.
        message: what to encode.
        checked_at: when the store last said that the part is wanted.
        begun_at: when the batch was formed.
        reuse: the item's segments, if it has any.
    """

    id: str
    message: EncodeMessage
    checked_at: float = 0.0
    begun_at: float = 0.0
    reuse: SegmentReuse | None = None

    @property
    def part(self) -> PartId:
        """The part of the job that this message finishes."""
        return PartId(self.message.item.index, self.message.wanted.track)

    def checked(self, at: float) -> Ticket:
        """A copy for which the store said at this time that it is wanted."""
        return replace(self, checked_at=at)

    def begun(self, at: float) -> Ticket:
        """A copy whose batch was formed at this time."""
        return replace(self, begun_at=at)

    def slot(self, path: Path, now: float) -> Slot:
        """The engine's view of the ticket; ``path`` is the raw blob's file."""
        message = self.message
        return Slot(
            id=self.id,
            encoder=message.wanted.encoder,
            raw=message.raw,
            path=path,
            options=message.item.options,
            priority=message.priority,
            deadline=message.deadline,
            enqueued=now,
            piece=None if self.reuse is None else self.reuse.piece,
        )


class TaskStatus(StrEnum):
    """How a message ended. Only ``FAILED`` is the item's fault."""

    ENCODED = "encoded"
    FAILED = "failed"
    REFETCHED = "refetched"  #: its blob or encoder is gone, so the item went back to ``fetch``
    EXPIRED = "expired"
    CANCELLED = "cancelled"  #: its part is no longer wanted


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one ticket ended. ``summary`` is for operators; ``error`` is set when it failed."""

    ticket_id: str
    status: TaskStatus
    summary: dict[str, str | int | float] = field(default_factory=dict)
    error: EpdError | None = None

    @property
    def text(self) -> str:
        """The summary as one line: ``key=... tokens=257 forward_s=0.012``."""
        return " ".join(f"{name}={value}" for name, value in self.summary.items())


class TicketLedger:
    """Tickets by id, from delivery to release. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: dict[str, Ticket] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._tickets)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket, or replace it by a newer copy."""
        with self._lock:
            self._tickets[ticket.id] = ticket

    def get(self, ticket_id: str) -> Ticket | None:
        """The ticket, or None after its release."""
        with self._lock:
            return self._tickets.get(ticket_id)

    def begin(self, ticket_ids: Iterable[str], at: float) -> None:
        """Set the time at which the batch of these tickets was formed, in Unix seconds."""
        with self._lock:
            for ticket_id in ticket_ids:
                if ticket_id in self._tickets:
                    self._tickets[ticket_id] = self._tickets[ticket_id].begun(at)

    def pop(self, ticket_id: str) -> Ticket | None:
        """Remove and return a ticket."""
        with self._lock:
            return self._tickets.pop(ticket_id, None)

    def embedding_keys(self) -> set[str]:
        """The embedding keys of all tickets."""
        with self._lock:
            return {ticket.message.wanted.key for ticket in self._tickets.values()}


class LeaseKeeper(PeriodicThread):
    """Renews the leases of the flights of all tickets, so that no reaper starts them a second time."""

    def __init__(self, flights: Flights, ledger: TicketLedger, lease: float) -> None:
        period, failed = lease / _RENEWALS_PER_LEASE, log_failure(_log, "renewal of leases")
        super().__init__("encode-leases", period, self._renew, failed, wait_first=True)
        self._flights = flights
        self._ledger = ledger

    def _renew(self) -> None:
        self._flights.extend(self._ledger.embedding_keys())


#: Seconds for which the store's answer about a part counts, so that most messages need only one look-up.
ANSWER_TTL = 1.0


class Admission:
    """Checks messages against their deadline, job and blob, and against the loaded encoders."""

    def __init__(self, context: Context, cards: Mapping[str, EncoderCard]) -> None:
        self._context = context
        self._identities = {name: encoder_identity(card) for name, card in cards.items()}

    def admit(self, tickets: Sequence[Ticket]) -> list[Path | Dropped | Failed]:
        """Check new tickets, with one round trip to the store for all of them.

        Returns:
            For each ticket the raw blob's file if it is to be encoded, else how it ends.
        """
        now = self._context.clock()
        timely = [ticket for ticket in tickets if ticket.message.deadline > now]
        wanted = self._wanted(timely)
        return [self._admit(ticket, now, wanted) for ticket in tickets]

    def still_wanted(self, tickets: Sequence[Ticket]) -> set[str]:
        """The ids of the tickets to run, when their batch is formed.

        Only tickets whose last answer is older than ``ANSWER_TTL`` are looked up, in one round trip.
        """
        oldest = self._context.clock() - ANSWER_TTL
        stale = [ticket for ticket in tickets if ticket.checked_at <= oldest]
        fresh = {ticket.id for ticket in tickets if ticket.checked_at > oldest}
        return fresh | self._wanted(stale)

    def _wanted(self, tickets: Sequence[Ticket]) -> set[str]:
        """The ids of the tickets whose part still waits for a result; these parts move to the encode stage.

        While the store is down all tickets count as wanted, and only the writing of results waits for it.
        """
        parts = [(ticket.message.job_id, ticket.part) for ticket in tickets]
        try:
            answers = self._context.store.jobs.advance_all(parts, Stage.ENCODE)
        except StoreUnavailable as error:
            _log.warning("cannot look up whether %d parts still wait: %s", len(tickets), error)
            return {ticket.id for ticket in tickets}
        return {ticket.id for ticket, waits in zip(tickets, answers, strict=True) if waits}

    def _admit(self, ticket: Ticket, now: float, wanted: set[str]) -> Path | Dropped | Failed:
        message = ticket.message
        if message.deadline <= now:
            return Dropped(DropReason.EXPIRED)
        if ticket.id not in wanted:
            return Dropped(DropReason.CANCELLED)
        if self._identities.get(message.wanted.encoder) != message.wanted.encoder_identity:
            return Failed(EncoderNotReady(f"encoder {message.wanted.encoder!r} has changed or is not here"))
        return self._blob(message)

    def _blob(self, message: EncodeMessage) -> Path | Failed:
        try:
            return self._context.store.blobs.path(message.raw.blob)
        except BlobMissing as error:
            return Failed(error)
