"""How many bytes the files of a folder take, cheaply: counted at most twice a second, adjusted in between."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

#: Other processes write into the same folder, so a count is believed this long, in seconds.
COUNT_LIFE = 0.5


class FolderUsage:
    """Bytes in a folder, as this process sees them. Thread-safe.

    A file that this process writes counts as what was reserved for it, or as its size where that is more.
    """

    def __init__(self, folder: Path) -> None:
        """Count later."""
        self._folder = folder
        self._lock = threading.Lock()
        self._total = 0
        self._counted_at = float("-inf")
        #: File being written -> (bytes reserved, bytes that the total holds for it).
        self._writing: dict[str, tuple[int, int]] = {}

    def bytes_now(self) -> int:
        """Bytes of all files, with what is reserved and not written yet."""
        with self._lock:
            return self._fresh_total()

    def begin(self, name: str, reserve: int, limit: int) -> bool:
        """Hold room for a new file; False when it does not fit below the limit. ``end`` gives it back."""
        with self._lock:
            if self._fresh_total() + reserve > limit:
                return False
            self._writing[name] = (reserve, reserve)
            self._total += reserve
            return True

    def end(self, name: str, nbytes: int) -> None:
        """The file is whole with that many bytes, or gone with zero."""
        with self._lock:
            _, held = self._writing.pop(name)
            self._total += nbytes - held

    def subtract(self, nbytes: int) -> None:
        """A file that was whole went."""
        with self._lock:
            self._total = max(0, self._total - nbytes)

    def forget(self) -> None:
        """Count anew at the next question."""
        with self._lock:
            self._counted_at = float("-inf")

    def _fresh_total(self) -> int:
        if time.monotonic() - self._counted_at > COUNT_LIFE:
            sizes = _sizes_of(self._folder)
            for name, (reserve, _) in self._writing.items():
                sizes[name] = max(reserve, sizes.get(name, 0))
                self._writing[name] = (reserve, sizes[name])
            self._total = sum(sizes.values())
            self._counted_at = time.monotonic()
        return self._total


def _sizes_of(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(folder):
            with suppress(FileNotFoundError):
                sizes[file.name] = file.stat(follow_symlinks=False).st_size
    return sizes
