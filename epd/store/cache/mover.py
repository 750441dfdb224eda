"""The mover copies files between the tiers: L1 overflows into L2, and what is used again returns to L1.

A lease makes it the only mover of the fleet. Its process may die at any point: the index never names a copy
that is not whole, and a copy that no index names is swept. Two movers at once, as when one was frozen for
longer than its lease, do some work twice without harm.
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
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.files.embedding_format import open_regular, read_header
from epd.store.values import CacheEvent, Moved

logger = logging.getLogger(__name__)

#: Files of each kind (promotions, demotions) that one round takes from the index.
MOST = 32
#: Seconds for which a mover is the only one after it last asked for work.
LEASE = 15.0
#: Seconds without demotions after L2 was full or failed.
PAUSE = 10.0


class _Move(Enum):
    """The result of moving one file."""

    DONE = 1
    NEEDLESS = 2  #: The index did not want the copy any more.
    FAILED = 3


class Mover:
    """Copies files between the folders of two tiers, as the index asks for it. Call it from one thread."""

    def __init__(self, index: EmbeddingIndex, l1: EmbeddingFolder, l2: EmbeddingFolder) -> None:
        self._index = index
        self._l1 = l1
        self._l2 = l2
        self._name = uuid.uuid4().hex
        self._paused_until = 0.0

    def move(self, seconds: float) -> Moved:
        """Do one round of work within about so many seconds. What is left then is part of a later round.

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
        """Copy a file to L1."""
        try:
            with self._source(Tier.L2, key) as source:
                self._l1.copy_in(key, source, keep=True, checksum=checksum)
        except NotFound as error:
            return self._forget(Tier.L2, key, error)
        except (BlobSpaceFull, OSError) as error:
            return self._fail(key, error)
        taken, evicted = self._index.promoted(key)
        for gone in evicted:
            self._l1.remove(gone)
        if taken:
            return _Move.DONE
        self._delete_unnamed(Tier.L1, key)
        return _Move.NEEDLESS

    def _demote(self, key: str) -> _Move:
        """Copy a file to L2."""
        if self._is_paused():
            return _Move.NEEDLESS
        try:
            with self._source(Tier.L1, key) as source:
                checksum = self._l2.copy_in(key, source, keep=False)
        except NotFound as error:
            return self._forget(Tier.L1, key, error)
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
        self._delete_unnamed(Tier.L2, key)
        return _Move.NEEDLESS

    @contextmanager
    def _source(self, tier: Tier, key: str) -> Iterator[BinaryIO]:
        """Open a file and check its header; raises ``NotFound`` if it is missing or damaged."""
        path = self._folder(tier).path(key)
        try:
            file = open_regular(path)
        except FileNotFoundError as error:
            raise NotFound("its file is gone") from error
        with file:
            read_header(path, file)
            yield file

    def _forget(self, tier: Tier, key: str, error: NotFound) -> _Move:
        """Remove a lost or damaged file from the index, then delete it."""
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

    def _delete_unnamed(self, tier: Tier, key: str) -> None:
        """Delete a copy that the index did not want, unless it names a file there by now."""
        for unnamed in self._index.unnamed(tier, [key]):
            self._folder(tier).remove(unnamed)

    def _folder(self, tier: Tier) -> EmbeddingFolder:
        return self._l1 if tier is Tier.L1 else self._l2

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until
