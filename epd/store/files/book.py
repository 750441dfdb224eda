"""The book of a folder: how many bytes are taken, in one file that changes under one file lock.

The lock is held for microseconds, but its holder may be frozen (SIGSTOP). A process that has waited for
``LOCK_SECONDS`` replaces the book by an empty one, and counts the files. A holder that goes on afterwards
writes into a file that nobody reads any more, and notices with ``OpenBook.is_current``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from epd.contracts.errors import BlobSpaceFull

#: The book's name in the folder of the ledger.
BOOK = "book"
#: Seconds to wait for the lock, until its holder counts as frozen.
LOCK_SECONDS = 2.0

_LOCK_PAUSE = 0.0005
#: How many frozen holders in a row are replaced for one change.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Totals:
    """The content of a book.

    Attributes:
        used: bytes of all files and all accounts.
        ceiling: the most bytes that the device takes; no bound before the first count.
        counted_at: when the files were last counted, in Unix seconds.
        refused_at: when a writer was last refused, in Unix seconds.
    """

    used: int = 0
    ceiling: int = sys.maxsize
    counted_at: float = 0.0
    refused_at: float = 0.0

    _LAYOUT = struct.Struct("<qqdd")

    @classmethod
    def parse(cls, data: bytes) -> Totals | None:
        """The totals in a file's bytes; None if the file was never written as a whole."""
        return cls(*cls._LAYOUT.unpack(data)) if len(data) == cls._LAYOUT.size else None

    def pack(self) -> bytes:
        """The inverse of ``parse``."""
        return self._LAYOUT.pack(self.used, self.ceiling, self.counted_at, self.refused_at)

    def add(self, nbytes: int) -> Totals:
        """The totals with more bytes used, or fewer."""
        return replace(self, used=max(0, self.used + nbytes))

    def counted_within(self, seconds: float) -> bool:
        """Whether the count is at most that old. One from the future is not: the clock was set back."""
        return 0 <= time.time() - self.counted_at < seconds

    def refused_within(self, seconds: float) -> bool:
        """Whether a writer was refused in the last seconds."""
        return 0 <= time.time() - self.refused_at < seconds


class OpenBook:
    """A book that this thread has locked."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def read(self) -> Totals:
        """The totals; zeros, which are older than any count, if there are none yet."""
        return Totals.parse(os.pread(self._fd, 64, 0)) or Totals()

    def write(self, totals: Totals) -> None:
        """Replace the totals."""
        os.pwrite(self._fd, totals.pack(), 0)

    def add(self, nbytes: int) -> None:
        """Note that files became larger, or with a negative number that files were deleted."""
        self.write(self.read().add(nbytes))

    def is_current(self) -> bool:
        """Whether this is still the folder's book. It is not if this process was frozen for too long."""
        try:
            return os.stat(self._path).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False


class Book:
    """The book in one ledger folder. Safe across processes and threads."""

    def __init__(self, folder: Path) -> None:
        """The folder may be missing."""
        self._path = str(folder / BOOK)

    @contextmanager
    def locked(self) -> Iterator[OpenBook]:
        """Lock the book. Keep the block short.

        The file is opened each time, because threads and forks that share an open file share its lock.

        Raises:
            FileNotFoundError: the ledger's folder does not exist.
            BlobSpaceFull: the lock was not free in time, although frozen holders were replaced.
        """
        fd = self._lock()
        try:
            yield OpenBook(self._path, fd)
        finally:
            os.close(fd)

    def peek(self) -> Totals | None:
        """The totals without a lock; None if there are none."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return Totals.parse(os.read(fd, 64))
        finally:
            os.close(fd)

    def _lock(self) -> int:
        for _ in range(_TRIES):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                book = OpenBook(self._path, fd)
                locked = _lock_within(fd, LOCK_SECONDS)
                if locked and book.is_current():
                    fd, kept = -1, fd
                    return kept
                if not locked and book.is_current():
                    self._replace()
            finally:
                if fd >= 0:
                    os.close(fd)
        raise BlobSpaceFull("the ledger of the blob directory is locked by a process that does not move")

    def _replace(self) -> None:
        """Put an empty book in the place of one whose holder is frozen."""
        fresh = f"{self._path}-{os.urandom(8).hex()}"
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with suppress(FileNotFoundError):  # A count removes what nobody has locked.
            os.rename(fresh, self._path)


def _lock_within(fd: int, seconds: float) -> bool:
    """Lock an open file. False if it was not free in time."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= end:
            return False
        time.sleep(_LOCK_PAUSE)
