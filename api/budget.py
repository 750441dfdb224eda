"""A bound on the bytes of request bodies that one process holds in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from epd.contracts.errors import Overloaded

#: Seconds after which a refused caller may come again.
RETRY_AFTER = 1.0


class ByteBudget:
    """Counts bytes that are held; refuses more than ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = Lock()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._held

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Hold bytes for the length of the block; raises ``Overloaded`` when they do not fit."""
        with self._lock:
            if self._held + nbytes > self.limit:
                raise Overloaded("too many request bodies at once", retry_after=RETRY_AFTER)
            self._held += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._held -= nbytes
