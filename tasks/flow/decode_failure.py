"""The end of a decode message that cannot be served."""

from __future__ import annotations

from epd.contracts.errors import EpdError
from epd.contracts.messages import DecodeMessage, Wanted
from tasks.flow.claims import fail_flight
from tasks.flow.context import Context
from tasks.flow.download_flight import fail_along


def wanted_of(message: DecodeMessage) -> tuple[Wanted, ...]:
    """The embeddings that a decode message is for, the main one first."""
    return tuple(wanted for wanted in (message.main, message.audio) if wanted is not None)


def fail_decode(context: Context, message: DecodeMessage, error: EpdError) -> None:
    """Fail what a decode message is for, for everybody who waits for it, and free its bytes."""
    for wanted in wanted_of(message):
        fail_flight(context, message, message.item, wanted, error)
    fail_along(context, message, message.item, error)
    context.store.blobs.free(message.blob)
