"""Whether an encode message is worth a slot: asked before it queues, and again when its batch is formed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from epd.contracts.card import EncoderCard
from epd.contracts.errors import BlobMissing, EncoderNotReady, StoreUnavailable
from epd.contracts.job import Stage
from epd.contracts.messages import EncodeMessage
from epd.identity import encoder_identity
from gpu_worker.engine.slot import Dropped, DropReason, Failed
from gpu_worker.ticket import Ticket
from tasks.flow.context import Context

_log = logging.getLogger(__name__)

#: The store's last word on a part counts this long, in seconds: one question a message unless it queues long.
ANSWER_TTL = 1.0


class Admission:
    """Checks of one message against deadline, loaded encoders, job and blob."""

    def __init__(self, context: Context, cards: Mapping[str, EncoderCard]) -> None:
        self._context = context
        self._identities = {name: encoder_identity(card) for name, card in cards.items()}

    def admit(self, ticket: Ticket) -> Path | Dropped | Failed:
        """The raw blob's file when the message is to be encoded, else how it ends. One call to the store."""
        message = ticket.message
        if message.deadline <= self._context.clock():
            return Dropped(DropReason.EXPIRED)
        if not self.is_wanted(ticket):
            return Dropped(DropReason.CANCELLED)
        if self._identities.get(message.wanted.encoder) != message.wanted.encoder_identity:
            return Failed(EncoderNotReady(f"encoder {message.wanted.encoder!r} has changed or is not here"))
        return self._blob(message)

    def is_still_wanted(self, ticket: Ticket) -> bool:
        """Asked again when the batch is formed; the store is spared where its last word is fresh."""
        if self._context.clock() - ticket.asked_at < ANSWER_TTL:
            return True
        return self.is_wanted(ticket)

    def is_wanted(self, ticket: Ticket) -> bool:
        """Whether the part still waits for a result; marks it as being encoded.

        A store that does not answer does not hold the work up: the reply waits for it.
        """
        try:
            return self._context.store.jobs.advance(ticket.message.job_id, ticket.part, Stage.ENCODE)
        except StoreUnavailable as error:
            _log.warning("cannot ask whether job %s waits: %s", ticket.message.job_id, error)
            return True

    def _blob(self, message: EncodeMessage) -> Path | Failed:
        try:
            return self._context.store.blobs.path(message.raw.blob)
        except BlobMissing as error:
            return Failed(error)
