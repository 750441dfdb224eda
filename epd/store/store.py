"""The store: every part of it, over one server and one pair of directories.

All calls are bounded in time and raise ``StoreUnavailable`` when the server does not answer. They are
synchronous, except those of ``recent`` and ``handoff_looks``, which are for an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epd.store.cache.embeddings import Embeddings
from epd.store.cache.recent import RecentEntries
from epd.store.files.blobs import Blobs
from epd.store.flights import Flights
from epd.store.handoffs import HandoffLooks, Handoffs
from epd.store.jobs import Admissions, Jobs, Notices
from epd.store.records import Cards, Heartbeats, Segments, Sources
from epd.store.values import InlineHolder


@dataclass(frozen=True, slots=True)
class Store:
    """All parts of the store, over one server and one pair of directories."""

    embeddings: Embeddings
    flights: Flights
    jobs: Jobs
    admissions: Admissions
    handoffs: Handoffs
    blobs: Blobs
    cards: Cards
    sources: Sources
    segments: Segments
    heartbeats: Heartbeats
    notices: Notices
    recent: RecentEntries
    handoff_looks: HandoffLooks
    disconnect: Callable[[], None]

    def close(self) -> None:
        """End subscriptions and connections. A later call connects again."""
        self.notices.close()
        self.disconnect()


#: Digests that are looked at in one round.
_MOST_DIGESTS = 4096
#: A job is written a moment after its bytes, and workers end it a moment after its deadline; in seconds.
GRACE = 60.0


def release_inline(store: Store, now: float) -> int:
    """End what finished jobs hold and remove what nobody holds then; returns how many files went.

    Args:
        store: The store and its blob folder.
        now: Unix seconds.

    Raises:
        StoreUnavailable: the store does not answer, so nothing was removed.
    """
    holders = store.blobs.inline_holders(_MOST_DIGESTS)
    jobs = sorted({holder.job_id for holder in holders if holder.job_id})
    open_parts = dict(zip(jobs, store.jobs.open_parts(jobs), strict=True))
    return store.blobs.drop_inline(
        [holder for holder in holders if _is_over(holder, open_parts.get(holder.job_id), now)]
    )


def _is_over(holder: InlineHolder, open_parts: int | None, now: float) -> bool:
    """Whether a holder's job is final, past its time, or was never written (nor will be)."""
    if not holder.job_id or now > holder.until + GRACE:
        return True
    return now > holder.since + GRACE if open_parts is None else open_parts == 0
