"""Accounts: what each process has taken out of the room of a folder, for the files it writes and to spare.

An account is a file of four numbers, locked for as long as its process lives. The kernel drops the lock with
the process, so every other process sees when an account is dead.

The room of an account is ``taken - finished + freed``. ``taken`` changes under the lock of the book.
``finished`` and ``freed`` only grow, and change without a lock: ``freed`` before a file is deleted and
``finished`` after one is complete. So a count that reads ``finished``, then the files, then ``freed`` finds
each file in at least one place, whatever happens while it reads.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from epd.store.files.book import BOOK

#: The folders of the accounts, and of files that are being written, in the folder of the ledger's files.
LEDGER, WRITING = ".ledger", ".writing"
#: Seconds without use after which a process gives its spare room back.
SPARE_LIFE = 1.0

_LAYOUT = struct.Struct("<4q")


@dataclass(slots=True)
class Figures:
    """The numbers of an account, in bytes.

    Attributes:
        taken: taken from the book, less what was given back.
        finished: of files that were completed.
        freed: of files that were deleted.
        held: reserved for files that are being written.
    """

    taken: int = 0
    finished: int = 0
    freed: int = 0
    held: int = 0

    @property
    def room(self) -> int:
        """Bytes that are neither in the book's free room nor in finished files."""
        return self.taken - self.finished + self.freed

    @property
    def spare(self) -> int:
        """Bytes of the room that no file has reserved. Negative after a file grew beyond its reservation."""
        return self.taken - self.finished + self.freed - self.held


class Account(Figures):
    """The account of this process. Its methods are called under the ledger's thread lock."""

    __slots__ = ("__weakref__", "_close", "_fd", "_path", "name", "used", "writing")

    def __init__(self, folder: Path) -> None:
        """Open a new account for the files of a folder, which is created."""
        super().__init__()
        self.name = os.urandom(8).hex()
        #: Set by every change. The ledger clears it, to see whether spare room is used.
        self.used = True
        #: Where the files of the account are written, until they are complete.
        self.writing = folder / WRITING / self.name
        self._path = folder / LEDGER / self.name
        self._open()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:  # A count may have removed it before it was locked.
                break
            os.close(fd)
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False  # The lock must hold for as long as any thread runs.
        self._publish()
        self.writing.mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Write the account again if somebody removed the folder."""
        if not os.path.exists(self._path):
            self._close()
            self._open()

    def leave(self) -> None:
        """Close the file in a forked child, which would else keep its parent's account locked."""
        self._close()

    def change(self, *, taken: int = 0, finished: int = 0, freed: int = 0, held: int = 0) -> None:
        """Add to the numbers."""
        self.taken += taken
        self.finished += finished
        self.freed += freed
        self.held += held
        self.used = True
        self._publish()

    def _publish(self) -> None:
        os.pwrite(self._fd, _LAYOUT.pack(self.taken, self.finished, self.freed, self.held), 0)


class SpareKeeper:
    """A thread that calls ``tend`` once in ``SPARE_LIFE``, for as long as it is awake."""

    def __init__(self, tend: Callable[[], None]) -> None:
        """``tend`` is a bound method, which calls ``rest`` when nothing is spare."""
        self._tend = weakref.WeakMethod(tend, lambda _: self._awake.set())
        self._awake = threading.Event()
        threading.Thread(target=self._run, name="epd-spare-room", daemon=True).start()

    def wake(self) -> None:
        """Begin to call ``tend``."""
        if not self._awake.is_set():
            self._awake.set()

    def rest(self) -> None:
        """Sleep until ``wake``."""
        self._awake.clear()

    def _run(self) -> None:
        while True:
            self._awake.wait()
            time.sleep(SPARE_LIFE)
            tend = self._tend()
            if tend is None:
                return
            tend()
            del tend


def read_accounts(folder: Path) -> dict[str, Figures]:
    """The accounts in the folder of a ledger by name, those of dead processes too."""
    found: dict[str, Figures] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name != BOOK:
                with suppress(FileNotFoundError):
                    data = (folder / name).read_bytes()
                    found[name] = Figures(*_LAYOUT.unpack(data)) if len(data) == _LAYOUT.size else Figures()
    return found


def remove_dead(folder: Path, name: str) -> bool:
    """Remove an account if its process is dead. Returns whether it is gone."""
    try:
        fd = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / name).unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
