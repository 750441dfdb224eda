"""The store: every part of it, over one server and one pair of directories.

All calls are bounded in time and raise ``StoreUnavailable`` when the server does not answer. They are
synchronous, except those of ``recent`` and ``handoff_looks``, which are for an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epd.store.blob_folder import Blobs
from epd.store.embeddings import Embeddings
from epd.store.redis.admissions import Admissions
from epd.store.redis.flights import Flights
from epd.store.redis.handoffs import HandoffLooks, Handoffs
from epd.store.redis.hits import RecentEntries
from epd.store.redis.jobs import Jobs
from epd.store.redis.notices import Notices
from epd.store.redis.records import Cards, Heartbeats, Sources
from epd.store.redis.segments import Segments


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
