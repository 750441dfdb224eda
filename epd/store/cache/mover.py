"""Moving files between the tiers in the background: L1 overflows into L2, and what is used again comes back.

One mover works in the whole fleet, by a lease. Whoever calls it may die between any two steps: a copy that
no index names yet is swept, and an index never names a copy that is not whole. Two movers at once (one was
frozen beyond its lease) do the same work twice and harm nothing.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import BinaryIO

from epd.contracts.errors import BlobSpaceFull, NotFound
from epd.contracts.responses import Tier
from epd.store.cache.index import EmbeddingIndex
from epd.store.files.embedding_file import open_regular, read_header
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.values import CacheEvent, Moved

logger = logging.getLogger(__name__)

#: Files of each kind that one round takes from the index.
MOST = 32
#: Seconds for which a mover is the only one after it last asked for work.
LEASE = 15.0
#: Seconds without demotions after the second tier had no room or was broken.
PAUSE = 10.0


class _Move(Enum):
    """What became of one file."""

    DONE = 1
    NEEDLESS = 2  #: nobody wanted it any more
    FAILED = 3


class Mover:
    """Copies files between two folders as the index says. Call it from one thread."""

    def __init__(self, index: EmbeddingIndex, l1: EmbeddingFolder, l2: EmbeddingFolder) -> None:
        """``l1`` holds what is read most, ``l2`` what it has no room for."""
        self._index = index
        self._l1 = l1
        self._l2 = l2
        self._name = uuid.uuid4().hex
        self._paused_until = 0.0

    def move(self, seconds: float) -> Moved:
        """Do what is to be done now, for about so many seconds at most; what is left over is given out again.

        Raises:
            StoreUnavailable: the index does not answer.
        """
        until = time.monotonic() + seconds
        work = self._index.work(self._name, lease=LEASE, most=MOST)
        if work is None:
            return Moved()
        for key in work.left:
            self._l1.remove(key)
        promoted = [
            self._promote(key, checksum) for key, checksum in work.promote if time.monotonic() < until
        ]
        demoted = [self._demote(key) for key in work.demote if time.monotonic() < until]
        left_over = len(promoted) + len(demoted) < len(work.promote) + len(work.demote)
        return Moved(
            promoted=promoted.count(_Move.DONE),
            demoted=demoted.count(_Move.DONE),
            failed=[*promoted, *demoted].count(_Move.FAILED),
            more=not self._is_paused() and (left_over or MOST in (len(promoted), len(demoted))),
        )

    def _promote(self, key: str, checksum: str) -> _Move:
        """Copy to L1."""
        try:
            with self._source(Tier.L2, key) as source:
                self._l1.copy_in(key, source, keep=True, checksum=checksum)
        except NotFound as error:
            return self._give_up(Tier.L2, key, error)
        except (BlobSpaceFull, OSError) as error:
            return self._fail(key, error)
        taken, evicted = self._index.promoted(key)
        for gone in evicted:
            self._l1.remove(gone)
        if taken:
            return _Move.DONE
        self._clear(Tier.L1, key)
        return _Move.NEEDLESS

    def _demote(self, key: str) -> _Move:
        """Copy to L2."""
        if self._is_paused():
            return _Move.NEEDLESS
        try:
            with self._source(Tier.L1, key) as source:
                checksum = self._l2.copy_in(key, source, keep=False)
        except NotFound as error:
            return self._give_up(Tier.L1, key, error)
        except (BlobSpaceFull, OSError) as error:
            self._paused_until = time.monotonic() + PAUSE
            return self._fail(key, error)
        demotion = self._index.demoted(key, checksum)
        for gone in demotion.evicted:
            self._l2.remove(gone)
        if demotion.left_l1:
            self._l1.remove(key)
        if demotion.taken:
            return _Move.DONE
        self._clear(Tier.L2, key)
        return _Move.NEEDLESS

    @contextmanager
    def _source(self, tier: Tier, key: str) -> Iterator[BinaryIO]:
        """A whole file, open; raises ``NotFound`` when it is not there or not whole."""
        path = self._folder(tier).path(key)
        try:
            file = open_regular(path)
        except FileNotFoundError as error:
            raise NotFound("its file is gone") from error
        with file:
            read_header(path, file)
            yield file

    def _give_up(self, tier: Tier, key: str, error: NotFound) -> _Move:
        """A file that is lost or damaged: the index forgets it, then it is deleted."""
        logger.warning("embedding %s in %s cannot be moved: %s", key, tier, error)
        self._index.leave(tier, [key])
        if self._folder(tier).remove(key):
            self._index.count(CacheEvent.CORRUPT)
        return self._count_failure()

    def _fail(self, key: str, error: Exception) -> _Move:
        logger.warning("embedding %s was not moved: %s", key, error)
        return self._count_failure()

    def _count_failure(self) -> _Move:
        self._index.count(CacheEvent.FAILED_MOVES)
        return _Move.FAILED

    def _clear(self, tier: Tier, key: str) -> None:
        """Delete a copy that was made for nothing, unless the index names one there all the same."""
        for unnamed in self._index.unnamed(tier, [key]):
            self._folder(tier).remove(unnamed)

    def _folder(self, tier: Tier) -> EmbeddingFolder:
        return self._l1 if tier is Tier.L1 else self._l2

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until
