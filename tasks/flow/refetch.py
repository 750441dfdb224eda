"""Running an item again: later, when trouble has passed, or from ``fetch`` on, when a blob is gone."""

from __future__ import annotations

from epd.contracts.errors import EpdError
from epd.contracts.job import PartId
from epd.contracts.media import Item
from epd.contracts.messages import MAX_ATTEMPTS, Envelope, FetchMessage
from epd.store.values import Waiter
from tasks.flow.context import Context

#: Bounds of the pause before a postponed message is tried again, in seconds.
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 5.0


def pause_of(context: Context, message: Envelope) -> float | None:
    """Seconds until a postponed message is tried again: half of what it has waited, within bounds.

    The bounds keep a fleet without a GPU worker from turning its whole queue over every second. None:
    the deadline comes first, so the item fails with its reason.
    """
    now = context.clock()
    pause = min(max((now - message.enqueued_at) / 2, SHORTEST_PAUSE), LONGEST_PAUSE)
    return pause if now + pause < message.deadline else None


def fetch_message(message: Envelope, item: Item, *, now: float, attempt: int | None = None) -> FetchMessage:
    """The fetch message of one item, with the job, deadline and trace of another message."""
    return FetchMessage(
        job_id=message.job_id,
        model=message.model,
        priority=message.priority,
        deadline=message.deadline,
        enqueued_at=now,
        attempt=message.attempt if attempt is None else attempt,
        trace=message.trace,
        items=(item,),
    )


def single_items(message: FetchMessage) -> list[FetchMessage]:
    """The items of a chunk, each in a message of its own."""
    return [fetch_message(message, item, now=message.enqueued_at) for item in message.items]


def waiter_of(message: Envelope, item: Item, part: PartId) -> Waiter:
    """Who waits for a flight on behalf of a message's item."""
    restart = fetch_message(message, item, now=message.enqueued_at)
    return Waiter(job_id=message.job_id, part=part, message=restart.to_json())


def send_back(context: Context, message: Envelope, item: Item, error: EpdError) -> bool:
    """Fetch an item again. False: it was tried ``MAX_ATTEMPTS`` times, so the caller fails it with ``error``.

    Raises:
        StoreUnavailable: the broker did not take it.
    """
    if message.attempt >= MAX_ATTEMPTS:
        return False
    again = fetch_message(message, item, now=context.clock(), attempt=message.attempt + 1)
    context.publisher.fetch([again])
    return True
