"""The book of a folder's bytes, shared by every process that writes into it: room is held before it is used.

<folder>/.ledger/book        bytes taken, bytes that fit, when the files were last counted
<folder>/.ledger/{name}      what a live writer holds for the file of that name: its size, in a sparse file

A change of the book is made under one lock of the file system, and takes microseconds. A writer keeps a lock
on its reservation for as long as it lives; the kernel drops it with the process, so the next count sees that
the writer is dead, and removes reservation and half-written file. Whatever else makes book and folder differ
(a kill between two steps, files moved by hand) ends with the next count. The store has no part in it, so
that a lost store loses no room.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from epd.contracts.errors import BlobSpaceFull

#: Seconds for which a count of the files is believed by all processes together.
COUNT_LIFE = 2.0
#: Before room is refused the files are counted anew, unless that was done less than so many seconds ago.
REFUSAL_LIFE = 0.05
#: Seconds to wait for the lock: it is held for microseconds, but its holder may be frozen (SIGSTOP).
LOCK_SECONDS = 2.0

_LEDGER = ".ledger"
_BOOK = "book"
_LOCK_PAUSE = 0.0005
#: Left free on the device, for the embeddings that usually share it: a 32nd of it, up to so many bytes.
_HEADROOM = 256 << 20


@dataclass(frozen=True, slots=True)
class Book:
    """``used`` bytes are taken or held; the device takes ``ceiling`` bytes. ``counted_at``: Unix seconds."""

    used: int
    ceiling: int
    counted_at: float

    _LAYOUT = struct.Struct("<qqd")

    @classmethod
    def parse(cls, data: bytes) -> Book | None:
        """The book of a file's bytes; None where it was never written whole."""
        return cls(*cls._LAYOUT.unpack(data)) if len(data) == cls._LAYOUT.size else None

    def pack(self) -> bytes:
        """The inverse of ``parse``."""
        return self._LAYOUT.pack(self.used, self.ceiling, self.counted_at)

    def add(self, nbytes: int) -> Book:
        """The book with so many bytes more (or fewer)."""
        return Book(max(0, self.used + nbytes), self.ceiling, self.counted_at)

    def is_older(self, seconds: float) -> bool:
        """Whether the count is older than that, or of a clock that went back."""
        return not 0 <= time.time() - self.counted_at < seconds


@dataclass(slots=True)
class Writing:
    """A file being written: its name, the bytes held for it, and the open reservation whose lock we hold."""

    name: str
    held: int
    fd: int


class FolderLedger:
    """Holds room in one folder, up to ``limit`` bytes and what the device takes. Safe over processes."""

    def __init__(self, folder: Path, limit: int) -> None:
        """The folder is made with the first file."""
        self._folder = folder
        self._ledger = folder / _LEDGER
        self._limit = limit

    @contextmanager
    def locked(self) -> Iterator[int]:
        """The book, open and locked, for short work; no method that changes it may be called inside.

        Opened anew each time: a lock is shared with forks and threads else.

        Raises:
            FileNotFoundError: nothing was ever written into the folder.
            BlobSpaceFull: the lock could not be had in time.
        """
        fd = os.open(self._ledger / _BOOK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock_in_time(fd)
            yield fd
        finally:
            os.close(fd)

    def begin(self, name: str, nbytes: int, share: float) -> Writing:
        """Hold room for a new file; ``end`` has to follow. ``share`` of the limit may be taken by its kind.

        Raises:
            BlobSpaceFull: it does not fit.
        """
        self._ledger.mkdir(parents=True, exist_ok=True)
        with self.locked() as lock:
            self._take(lock, nbytes, share)
            fd = os.open(self._ledger / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, nbytes)
            return Writing(name, nbytes, fd)

    def grow(self, writing: Writing, nbytes: int, share: float) -> None:
        """Hold so many bytes in all; less than what is held already changes nothing. Raises as ``begin``."""
        if nbytes <= writing.held:
            return
        with self.locked() as lock:
            self._take(lock, nbytes - writing.held, share)
            os.ftruncate(writing.fd, nbytes)
            writing.held = nbytes

    def end(self, writing: Writing, nbytes: int) -> None:
        """The file is whole with that many bytes, or gone with zero."""
        with suppress(BlobSpaceFull, FileNotFoundError), self.locked() as lock:
            self._write(lock, self._read(lock).add(nbytes - writing.held))
        (self._ledger / writing.name).unlink(missing_ok=True)
        os.close(writing.fd)

    def subtract(self, nbytes: int) -> None:
        """A file that was whole went. A book that cannot be had in time is put right by the next count."""
        with suppress(BlobSpaceFull, FileNotFoundError), self.locked() as lock:
            self._write(lock, self._read(lock).add(-nbytes))

    def bytes_now(self) -> int:
        """Bytes of all files and of all that is held; files that others put there count within seconds."""
        try:
            with self.locked() as lock:
                book = self._read(lock)
                if book.is_older(COUNT_LIFE):
                    book = self._count(lock)[0]
                return book.used
        except (FileNotFoundError, BlobSpaceFull):
            return sum(_sizes_of(self._folder).values())

    def room(self, share: float) -> int:
        """About how many bytes a share still takes, from the book as it stands: no lock, no count."""
        try:
            book = Book.parse((self._ledger / _BOOK).read_bytes())
        except OSError:
            book = None
        if book is None:
            return int(share * self._limit)
        return min(int(share * self._limit), book.ceiling) - book.used

    def count(self) -> int:
        """Count anew, and remove what dead writers left; returns how many files that were."""
        try:
            with self.locked() as lock:
                return self._count(lock)[1]
        except (FileNotFoundError, BlobSpaceFull):
            return 0

    def being_written(self) -> frozenset[str]:
        """Names of files that have a reservation."""
        return frozenset(_sizes_of(self._ledger)) - {_BOOK}

    def _take(self, lock: int, nbytes: int, share: float) -> None:
        limit, book = int(share * self._limit), self._read(lock)
        if book.is_older(COUNT_LIFE) or (
            book.used + nbytes > min(limit, book.ceiling) and book.is_older(REFUSAL_LIFE)
        ):
            book = self._count(lock)[0]
        if book.used + nbytes > min(limit, book.ceiling):
            raise BlobSpaceFull(f"no room for {nbytes} bytes more in the blob directory")
        self._write(lock, book.add(nbytes))

    def _read(self, lock: int) -> Book:
        return Book.parse(os.pread(lock, 64, 0)) or Book(0, 0, 0.0)

    def _write(self, lock: int, book: Book) -> None:
        os.pwrite(lock, book.pack(), 0)

    def _count(self, lock: int) -> tuple[Book, int]:
        """The book from the files themselves, and how many files of dead writers went."""
        held = {name: nbytes for name, nbytes in _sizes_of(self._ledger).items() if name != _BOOK}
        dead = {name for name in held if self._is_dead(name)}
        for name in dead:
            (self._folder / name).unlink(missing_ok=True)
            (self._ledger / name).unlink(missing_ok=True)
        sizes = _sizes_of(self._folder)
        live = {name: nbytes for name, nbytes in held.items() if name not in dead}
        used = sum(live.values()) + sum(nbytes for name, nbytes in sizes.items() if name not in live)
        unwritten = sum(max(0, nbytes - sizes.get(name, 0)) for name, nbytes in live.items())
        book = Book(used, used + max(0, _device_room(self._folder) - unwritten), time.time())
        self._write(lock, book)
        return book, len(dead)

    def _is_dead(self, name: str) -> bool:
        """Whether nobody holds the lock of a reservation. Holders take it under the book's lock."""
        try:
            fd = os.open(self._ledger / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True


def _lock_in_time(fd: int) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= end:
            raise BlobSpaceFull("the book of the blob directory is held by a process that does not move")
        time.sleep(_LOCK_PAUSE)


def _device_room(folder: Path) -> int:
    """Bytes that the device still takes, less the headroom."""
    device = os.statvfs(folder)
    return device.f_bavail * device.f_frsize - min(_HEADROOM, device.f_blocks * device.f_frsize // 32)


def _sizes_of(folder: Path) -> dict[str, int]:
    """Bytes by name of the files in a folder."""
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(folder):
            with suppress(FileNotFoundError):
                if file.is_file(follow_symlinks=False):
                    sizes[file.name] = file.stat(follow_symlinks=False).st_size
    return sizes
