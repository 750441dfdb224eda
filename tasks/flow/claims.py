"""Claiming an embedding, so that one encode serves everybody who wants it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from epd.contracts.errors import EpdError, Internal
from epd.contracts.job import PartId, PartRecord
from epd.contracts.media import Item
from epd.contracts.messages import Envelope, FetchMessage, Wanted
from epd.store.values import Claim
from tasks.flow.context import Context
from tasks.flow.parts import finish
from tasks.flow.refetch import waiter_of

#: An entry may be evicted between the claim that says "hit" and the look-up, each time anew.
_CLAIM_TRIES = 4


def claim(
    context: Context, message: Envelope, item: Item, wanted: Wanted, timings: Mapping[str, float]
) -> Claim:
    """Claim one embedding for the item's part.

    ``OWNED``: it is ours to make. ``HIT``: it was there and the part is finished as cached. ``WAITING``:
    another makes it, and finishes the part too.
    """
    part = PartId(item.index, wanted.track)
    waiter = waiter_of(message, item, part)
    for _ in range(_CLAIM_TRIES):
        answer = context.store.flights.claim(wanted.key, waiter)
        if answer is not Claim.HIT:
            return answer
        entry = context.store.embeddings.lookup([wanted.key], counted=True)[0]
        if entry is not None:
            finish(context, message, part, PartRecord.done(entry, cached=True), timings)
            return Claim.HIT
    raise Internal(f"embedding {wanted.key} comes and goes")


def fail_flight(context: Context, message: Envelope, item: Item, wanted: Wanted, error: EpdError) -> None:
    """Fail a flight for everybody who waits for it, and the item's own part should it not wait there."""
    context.store.flights.fail(wanted.key, error)
    part = PartId(item.index, wanted.track)
    context.store.jobs.finish(message.job_id, part, PartRecord.failed(error))


def withdraw(context: Context, message: Envelope, item: Item, wanted: Iterable[Wanted]) -> None:
    """Leave flights. Where others wait on one that was ours, the first of them starts it anew."""
    for each in wanted:
        part = PartId(item.index, each.track)
        heir = context.store.flights.withdraw(each.key, message.job_id, part)
        if heir is not None:
            restart = FetchMessage.from_json(heir).model_copy(update={"enqueued_at": context.clock()})
            context.publisher.fetch([restart])
