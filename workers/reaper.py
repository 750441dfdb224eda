"""Giving back what dead processes left: flights whose lease is over, and files that nobody owns.

Store, publisher and what is known of the queues are handed in, so this module needs no server and no broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from epd.contracts.messages import FetchMessage
from epd.store.inline_release import release_inline

if TYPE_CHECKING:
    from epd.store.base import Store

logger = logging.getLogger(__name__)

#: Messages published again in one round.
MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one round gave back."""

    flights: int = 0
    files: int = 0


@dataclass(frozen=True)
class Reaper:
    """One round a call of ``reap``.

    ``queued_since`` tells when the oldest queued message was published (Unix seconds), None with empty
    queues. While a queue is longer than a lease in time, a lease that is over says nothing: its message
    is most likely still queued, and every flight started twice would make the queue longer still. So
    flights are left alone until the queue is shorter.
    """

    store: Store
    publish: Callable[[Sequence[FetchMessage]], None]
    queued_since: Callable[[], float | None]
    lease: float
    file_age: float

    def reap(self, now: float) -> Reaped:
        """Start orphaned flights anew, free the inline bytes of finished jobs and sweep old files.

        Raises:
            StoreUnavailable: store or broker do not answer; the next round takes up what is left.
        """
        flights = self._restart_flights(now)
        return Reaped(flights, release_inline(self.store, now) + self.store.blobs.sweep(self.file_age))

    def sweep_embeddings(self) -> int:
        """Remove embedding files that no index entry names (their writer died, or the store was lost).

        Raises:
            StoreUnavailable: the store does not answer, so nothing was removed.
        """
        return self.store.embeddings.sweep(self.file_age)

    def _restart_flights(self, now: float) -> int:
        since = self.queued_since()
        if since is not None and now - since > self.lease:
            return 0
        messages = [
            message for text in self.store.flights.orphans(MOST_AT_ONCE) if (message := _parsed(text))
        ]
        again = [message.model_copy(update={"enqueued_at": now}) for message in messages]
        if again:
            logger.warning("%s flights are orphaned and start anew", len(again))
            self.publish(again)
        return len(again)


def _parsed(text: str) -> FetchMessage | None:
    try:
        return FetchMessage.from_json(text)
    except ValidationError:
        logger.exception("a waiter left an unreadable message; its item ends with its deadline")
        return None
