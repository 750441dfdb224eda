"""The embedding cache as people see it: its tiers, what happened to it, and its entries."""

from __future__ import annotations

from enum import StrEnum

from epd.contracts.media import Modality
from epd.contracts.wire import Wire


class Tier(StrEnum):
    """Where embedding files lie: L1 in memory, L2 on a disk or a shared file system."""

    L1 = "l1"
    L2 = "l2"


class TierStats(Wire):
    """Files of one tier, their bytes, and the limit of these."""

    entries: int
    nbytes: int
    limit: int


class CacheTotals(Wire):
    """What happened to the cache since the store was made, over the whole fleet.

    ``hits``: wanted embeddings that were found, by the tier they were read from. ``misses``: parts that had
    to be made, or waited for another's making. ``evicted``: files taken out of a tier for its limit; one
    that leaves L1 after its demotion lives on in L2. ``dropped``: those of them that no tier has any more:
    their embeddings have to be made again. ``failed_moves``: copies given up, as on a full disk.
    """

    hits_l1: int = 0
    hits_l2: int = 0
    misses: int = 0
    evicted_l1: int = 0
    evicted_l2: int = 0
    dropped: int = 0
    demotions: int = 0
    promotions: int = 0
    failed_moves: int = 0
    corrupt: int = 0
    removed: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Hits over hits and misses; None before there was any."""
        hits = self.hits_l1 + self.hits_l2
        return hits / (hits + self.misses) if hits + self.misses else None


class CachedAnswer(Wire):
    """An entry of the cache. ``weights_digest`` is its model revision; ``used_at`` is Unix seconds.

    ``shape`` is [tokens, hidden], ``nbytes`` the size of the tensor. ``pinned``: it is being read.
    """

    key: str
    modality: Modality
    encoder: str
    weights_digest: str | None = None
    shape: tuple[int, int]
    dtype: str
    nbytes: int
    tiers: tuple[Tier, ...]
    used_at: float
    pinned: bool = False


class CachePageAnswer(Wire):
    """Some entries, in no order. ``cursor`` asks for the next ones; None after the last.

    A page may be short or empty and not be the last: filters are applied to what is looked at. ``note`` tells
    when the encoder that was asked for is not configured: what it made may be here all the same.
    """

    embeddings: tuple[CachedAnswer, ...]
    cursor: str | None = None
    note: str | None = None


class RemovedAnswer(Wire):
    """How many entries one call removed. ``cursor`` goes on from there; None when all were looked at.

    ``note`` is that of ``CachePageAnswer``.
    """

    removed: int
    cursor: str | None = None
    note: str | None = None
