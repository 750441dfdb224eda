"""Whether an encode message is to be encoded: checked before it is queued, and when its batch is formed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import BlobMissing, EncoderNotReady, StoreUnavailable
from epd.contracts.job import Stage
from epd.contracts.messages import EncodeMessage
from epd.identity import encoder_identity
from gpu_worker.engine.slot import Dropped, DropReason, Failed
from gpu_worker.service.tickets import Ticket
from tasks.flow.context import Context

_log = logging.getLogger(__name__)

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
