"""How many bytes the files of a folder take, cheaply: counted at most twice a second, adjusted in between."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Other processes write into the same folder, so a count is believed this long, in seconds.
COUNT_LIFE = 0.5


class FolderUsage:
    """Bytes in a folder, as this process sees them, with what its writers have reserved."""

    def __init__(self, folder: Path) -> None:
        """Count later."""
        self._folder = folder
        self._lock = threading.Lock()
        self._counted = 0
        self._counted_at = float("-inf")
        self._reserved = 0

    def bytes_now(self) -> int:
        """Bytes of all files, and of what is reserved and perhaps not written yet."""
        with self._lock:
            if time.monotonic() - self._counted_at > COUNT_LIFE:
                self._counted = _bytes_of(self._folder)
                self._counted_at = time.monotonic()
            return max(0, self._counted) + self._reserved

    def add(self, nbytes: int) -> None:
        """A file of this process came (or, negative, went)."""
        with self._lock:
            self._counted += nbytes

    def forget(self) -> None:
        """Count anew at the next question."""
        with self._lock:
            self._counted_at = float("-inf")

    @contextmanager
    def reserved(self, nbytes: int) -> Iterator[None]:
        """Hold room for a file that is being written."""
        with self._lock:
            self._reserved += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= nbytes


def _bytes_of(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError):
        for file in os.scandir(folder):
            with suppress(FileNotFoundError):
                total += file.stat(follow_symlinks=False).st_size
    return total
