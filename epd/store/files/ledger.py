"""The ledger of a folder: every process that writes into the folder reserves room there first.

<folder>/.ledger/book      the totals: bytes used, bytes that fit on the device, time of the last count
<folder>/.ledger/{name}    a live writer's reservation for the file of that name; its size is what it reserves
                           (a sparse file)

The totals change under one file lock, which takes microseconds. A writer also locks its reservation for as
long as it lives. The kernel drops that lock with the process, so the next count sees that the writer is dead,
and removes its reservation and its unfinished file. A count also corrects any other error of the totals (a
process killed between two steps, files moved by hand). The ledger does not depend on the server, so losing
the server's data loses no room.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from epd.contracts.errors import BlobSpaceFull

#: Seconds for which all processes rely on a count of the files.
COUNT_LIFE = 2.0
#: A refusal needs a count that is no older than this, in seconds.
REFUSAL_LIFE = 0.05
#: Seconds to wait for the lock. It is held for microseconds, but its holder may be frozen (SIGSTOP).
LOCK_SECONDS = 2.0

_LEDGER = ".ledger"
_BOOK = "book"
_LOCK_PAUSE = 0.0005
#: Bytes left free on the device for embeddings, which usually share it: 1/32 of it, but at most this.
_HEADROOM = 256 << 20


@dataclass(frozen=True, slots=True)
class Totals:
    """``used`` bytes are taken or reserved; the device takes ``ceiling``. ``counted_at`` is Unix seconds."""

    used: int
    ceiling: int
    counted_at: float

    _LAYOUT = struct.Struct("<qqd")

    @classmethod
    def parse(cls, data: bytes) -> Totals | None:
        """The totals in a file's bytes; None if the file was never written as a whole."""
        return cls(*cls._LAYOUT.unpack(data)) if len(data) == cls._LAYOUT.size else None

    def pack(self) -> bytes:
        """The inverse of ``parse``."""
        return self._LAYOUT.pack(self.used, self.ceiling, self.counted_at)

    def add(self, nbytes: int) -> Totals:
        """The totals with more bytes used, or fewer."""
        return Totals(max(0, self.used + nbytes), self.ceiling, self.counted_at)

    def is_older(self, seconds: float) -> bool:
        """Whether the count is older than that. One from the future is: the clock was set back."""
        return not 0 <= time.time() - self.counted_at < seconds


@dataclass(slots=True)
class Reservation:
    """Room for a file that is being written: its name, its bytes, and the open file that we have locked."""

    name: str
    nbytes: int
    fd: int


class FolderLedger:
    """Room in one folder, up to ``limit`` bytes and to what the device takes. Safe across processes.

    A ``share`` is the part of the limit that one kind of file may fill.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """The folder is created with the first reservation."""
        self._folder = folder
        self._ledger = folder / _LEDGER
        self._limit = limit

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the totals and give their open file. Keep the block short, and change no room inside.

        The file is opened each time, because threads and forks that share an open file share its lock.

        Raises:
            FileNotFoundError: nothing was ever written into the folder.
            BlobSpaceFull: the lock was not free in time.
        """
        fd = os.open(self._ledger / _BOOK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock_in_time(fd)
            yield fd
        finally:
            os.close(fd)

    def reserve(self, name: str, nbytes: int, share: float) -> Reservation:
        """Reserve room for a new file. The caller must call ``settle`` at the end.

        Raises:
            BlobSpaceFull: there is no room, or the lock was not free in time.
        """
        self._ledger.mkdir(parents=True, exist_ok=True)
        with self.locked() as book:
            self._take(book, nbytes, share)
            fd = os.open(self._ledger / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, nbytes)
            return Reservation(name, nbytes, fd)

    def grow(self, reservation: Reservation, nbytes: int, share: float) -> None:
        """Raise a reservation to so many bytes; it never shrinks. Raises as ``reserve`` does."""
        if nbytes <= reservation.nbytes:
            return
        with self.locked() as book:
            self._take(book, nbytes - reservation.nbytes, share)
            os.ftruncate(reservation.fd, nbytes)
            reservation.nbytes = nbytes

    def settle(self, reservation: Reservation, nbytes: int) -> None:
        """Replace a reservation by the size of the finished file, or by zero if the file is gone."""
        with suppress(BlobSpaceFull, FileNotFoundError), self.locked() as book:
            self._write(book, self._read(book).add(nbytes - reservation.nbytes))
        (self._ledger / reservation.name).unlink(missing_ok=True)
        os.close(reservation.fd)

    def delete(self, paths: Iterable[Path]) -> int:
        """Delete finished files. Returns how many there were.

        If the lock is not free in time, they are deleted all the same, and the next count notes it.

        Raises:
            OSError: a file could not be deleted. The others are; the error is that of the last such file.
        """
        paths = list(paths)
        with suppress(BlobSpaceFull, FileNotFoundError), self.locked() as book:
            return self._delete(paths, book)
        return self._delete(paths, None)

    def replace(self, source: Path, target: Path) -> None:
        """Put a finished file in the place of another one, whose bytes are free then. Atomic for readers."""
        with suppress(BlobSpaceFull), self.locked() as book:
            replaced = target.stat().st_size if target.exists() else 0
            source.replace(target)
            self.subtract(book, replaced)
            return
        source.replace(target)

    def subtract(self, book: int, nbytes: int) -> None:
        """Note that finished files were deleted. Delete them under the same lock, which gave ``book``.

        A count between the two would leave the files out, and their bytes would be taken off twice.
        """
        self._write(book, self._read(book).add(-nbytes))

    def bytes_now(self) -> int:
        """Bytes of all files and reservations. Files that others put there count within seconds."""
        try:
            with self.locked() as book:
                totals = self._read(book)
                if totals.is_older(COUNT_LIFE):
                    totals = self._count(book)[0]
                return totals.used
        except (FileNotFoundError, BlobSpaceFull):
            return sum(_sizes_of(self._folder).values())

    def room(self, share: float) -> int:
        """About how many bytes a share still takes, from the last totals: without a lock and a count."""
        try:
            totals = Totals.parse((self._ledger / _BOOK).read_bytes())
        except OSError:
            totals = None
        if totals is None:
            return int(share * self._limit)
        return min(int(share * self._limit), totals.ceiling) - totals.used

    def count(self) -> int:
        """Count the files, and delete what dead writers left. Returns how many files that were."""
        try:
            with self.locked() as book:
                return self._count(book)[1]
        except (FileNotFoundError, BlobSpaceFull):
            return 0

    def being_written(self) -> frozenset[str]:
        """Names of the files that have a reservation."""
        return frozenset(_sizes_of(self._ledger)) - {_BOOK}

    def _delete(self, paths: Sequence[Path], book: int | None) -> int:
        sizes: list[int] = []
        failure: OSError | None = None
        for path in paths:
            try:
                nbytes = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                failure = error
            else:
                sizes.append(nbytes)
        if sizes and book is not None:
            self.subtract(book, sum(sizes))
        if failure is not None:
            raise failure
        return len(sizes)

    def _take(self, book: int, nbytes: int, share: float) -> None:
        limit, totals = int(share * self._limit), self._read(book)
        if totals.is_older(COUNT_LIFE) or (
            totals.used + nbytes > min(limit, totals.ceiling) and totals.is_older(REFUSAL_LIFE)
        ):
            totals = self._count(book)[0]
        if totals.used + nbytes > min(limit, totals.ceiling):
            raise BlobSpaceFull(f"no room for {nbytes} bytes more in the blob directory")
        self._write(book, totals.add(nbytes))

    def _read(self, book: int) -> Totals:
        return Totals.parse(os.pread(book, 64, 0)) or Totals(0, 0, 0.0)

    def _write(self, book: int, totals: Totals) -> None:
        os.pwrite(book, totals.pack(), 0)

    def _count(self, book: int) -> tuple[Totals, int]:
        """Make new totals from the files. Returns also how many files of dead writers were deleted."""
        reserved = {name: nbytes for name, nbytes in _sizes_of(self._ledger).items() if name != _BOOK}
        dead = {name for name in reserved if self._is_dead(name)}
        for name in dead:
            (self._folder / name).unlink(missing_ok=True)
            (self._ledger / name).unlink(missing_ok=True)
        sizes = _sizes_of(self._folder)
        live = {name: nbytes for name, nbytes in reserved.items() if name not in dead}
        used = sum(live.values()) + sum(nbytes for name, nbytes in sizes.items() if name not in live)
        unwritten = sum(max(0, nbytes - sizes.get(name, 0)) for name, nbytes in live.items())
        totals = Totals(used, used + max(0, _device_room(self._folder) - unwritten), time.time())
        self._write(book, totals)
        return totals, len(dead)

    def _is_dead(self, name: str) -> bool:
        """Whether a reservation is unlocked. Writers lock theirs while they hold the lock of the totals."""
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
            raise BlobSpaceFull("the ledger of the blob directory is locked by a process that does not move")
        time.sleep(_LOCK_PAUSE)


def _device_room(folder: Path) -> int:
    """Bytes that the device still takes, less the headroom."""
    device = os.statvfs(folder)
    return device.f_bavail * device.f_frsize - min(_HEADROOM, device.f_blocks * device.f_frsize // 32)


def _sizes_of(folder: Path) -> dict[str, int]:
    """The sizes in bytes of the files in a folder, by name."""
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(folder):
            with suppress(FileNotFoundError):
                if file.is_file(follow_symlinks=False):
                    sizes[file.name] = file.stat(follow_symlinks=False).st_size
    return sizes
