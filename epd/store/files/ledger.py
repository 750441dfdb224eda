"""The ledger of a folder: every process that writes into the folder reserves room there first.

<folder>/.ledger/book                the totals, see ``epd.store.files.book``
<folder>/.ledger/{account}           what one live process has taken, see ``epd.store.files.account``
<folder>/.writing/{account}/{name}   a file that is being written, until it is complete

A process takes room in steps, so most reservations change only its own account: no lock, no other file. It
keeps the room of files that it deletes for the next ones, and gives back what is more than two steps. All
that is spare goes back after a second without use, and while writers are refused. In a small folder a step
is zero bytes, so that nothing is spare and every refusal is exact.

``used = files + accounts`` stays true, or errs on the safe side until the next count: room is taken before a
file is written, is in the account before a file is deleted, and leaves it after a file is complete. When a
process dies, the next count drops its account and removes its unfinished files. A count also corrects any
other error (files moved by hand). The ledger does not depend on the server, so losing the server's data
loses no room.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from epd.contracts.errors import BlobSpaceFull
from epd.store.files.account import LEDGER, Account, SpareKeeper, read_accounts
from epd.store.files.book import Book, OpenBook, Totals
from epd.store.files.count import count_files, size_of, sizes_of

#: Seconds for which all processes rely on a count of the files.
COUNT_LIFE = 2.0
#: A refusal needs a count that is no older than this, in seconds.
REFUSAL_LIFE = 0.05
#: Seconds after a refusal during which no process keeps spare room for longer than ``SPARE_LIFE``.
SCARCE_LIFE = 5.0

#: A step is a 64th of the limit, but at most this, and zero where it would be less than ``_MIN_STEP``.
_MAX_STEP = 64 << 20
_MIN_STEP = 1 << 20


@dataclass(slots=True)
class Reservation:
    """Room for a file that is being written at ``path``, until it is complete."""

    name: str
    path: str
    nbytes: int
    account: Account


class FolderLedger:
    """Room in one folder, up to ``limit`` bytes and to what the device takes. Safe across processes.

    A ``share`` is the part of the limit that one kind of file may fill.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """The folder is created with the first reservation."""
        self._folder = folder
        self._ledger = folder / LEDGER
        self._limit = limit
        self._book = Book(self._ledger)
        step = min(_MAX_STEP, limit // 64)
        self._step = step if step >= _MIN_STEP else 0
        self._begin()
        _ledgers.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._opened: Account | None = None
        self._files = 0
        self._keeper: SpareKeeper | None = None

    def leave(self) -> None:
        """Leave the account to the parent, in a forked child."""
        if self._opened is not None:
            self._opened.leave()
        self._begin()

    def locked(self) -> AbstractContextManager[OpenBook]:
        """Lock the book, see ``Book.locked``. Reserve and delete nothing inside."""
        return self._book.locked()

    def reserve(self, letter: str, nbytes: int, share: float) -> Reservation:
        """Reserve room for a new file. The caller must call ``finish`` or ``drop`` at the end.

        Raises:
            BlobSpaceFull: there is no room, or the lock was not free in time.
        """
        with self._lock:
            account = self._account()
            self._take(account, nbytes, share)
            self._files += 1
            name = f"{letter}-{account.name}{self._files:016x}"
            return Reservation(name, f"{account.writing}/{name}", nbytes, account)

    def grow(self, reservation: Reservation, nbytes: int, share: float) -> None:
        """Raise a reservation to so many bytes; it never shrinks. Raises as ``reserve`` does."""
        if nbytes <= reservation.nbytes:
            return
        with self._lock:
            self._take(reservation.account, nbytes - reservation.nbytes, share)
            reservation.nbytes = nbytes

    def finish(self, reservation: Reservation) -> None:
        """Move a complete file into the folder, and put its size, zero if it is gone, for its reservation."""
        nbytes = size_of(reservation.path)
        if nbytes is not None:
            os.rename(reservation.path, f"{self._folder}/{reservation.name}")
        self._settle(reservation, nbytes or 0)

    def drop(self, reservation: Reservation) -> None:
        """Delete a file that will not be complete, if there is one, and release its room."""
        with suppress(FileNotFoundError):
            os.unlink(reservation.path)
        self._settle(reservation, 0)

    def _settle(self, reservation: Reservation, finished: int) -> None:
        with self._lock:
            reservation.account.change(finished=finished, held=-reservation.nbytes)
            self._balance(reservation.account)

    def restore(self) -> None:
        """Create the folder and the account again after somebody removed the folder."""
        with self._lock:
            self._account().restore()

    def delete(self, paths: Iterable[str | Path]) -> int:
        """Delete finished files. Returns how many there were.

        Raises:
            OSError: a file could not be deleted. The others are; the error is that of the last such file.
        """
        sizes = {path: nbytes for path in paths if (nbytes := size_of(path)) is not None}
        failure: OSError | None = None
        deleted = 0
        if not sizes:
            return 0
        with self._freeing(sum(sizes.values())) as keep:
            for path, nbytes in sizes.items():
                try:
                    os.unlink(path)
                    deleted += 1
                except OSError as error:
                    keep(nbytes)
                    failure = failure if isinstance(error, FileNotFoundError) else error
        if failure is not None:
            raise failure
        return deleted

    def replace(self, source: Path, target: Path) -> None:
        """Put a finished file in the place of another one, whose bytes are free then. Atomic for readers."""
        with self._freeing(size_of(target) or 0):
            source.replace(target)

    @contextmanager
    def _freeing(self, nbytes: int) -> Iterator[Callable[[int], None]]:
        """Move the bytes of files that the block deletes to the account, less those that it says it kept."""
        kept: list[int] = []
        with self._lock:
            self._account().change(freed=nbytes)
        try:
            yield kept.append
        except BaseException:
            kept = [nbytes]
            raise
        finally:
            with self._lock:
                account = self._account()
                if kept:
                    account.change(finished=sum(kept))
                self._balance(account)

    def bytes_now(self) -> int:
        """Bytes of all files and reservations. Files that others put there count within seconds."""
        try:
            with self._book.locked() as book:
                totals = book.read()
                if not totals.counted_within(COUNT_LIFE):
                    totals = self._count(book)[0]
                return totals.used - self._all_spare()
        except (FileNotFoundError, BlobSpaceFull):
            return sum(sizes_of(self._folder).values())

    def room(self, share: float) -> int:
        """About how many bytes a share still takes, from the last totals: without a lock and a count."""
        bound, totals = int(share * self._limit), self._book.peek()
        if totals is None:
            return bound
        left = min(bound, totals.ceiling) - totals.used
        return left if left > 0 else left + self._all_spare()

    def count(self) -> int:
        """Count the files, and delete what dead writers left. Returns how many files that were."""
        try:
            with self._book.locked() as book:
                return self._count(book)[1]
        except (FileNotFoundError, BlobSpaceFull):
            return 0

    def _count(self, book: OpenBook) -> tuple[Totals, int]:
        return count_files(self._folder, self._ledger, book)

    def _account(self) -> Account:
        if self._opened is None:
            self._opened = Account(self._folder)
        return self._opened

    def _all_spare(self) -> int:
        return sum(max(0, figures.spare) for figures in read_accounts(self._ledger).values())

    def _take(self, account: Account, nbytes: int, share: float) -> None:
        """Reserve more bytes, out of the spare room if they fit there."""
        if nbytes > account.spare or (share < 1.0 and not self._is_below(share)):
            account.restore()
            with self._book.locked() as book:
                step = self._step_that_fits(book, account, nbytes, share)
                if not _change_taken(book, account, nbytes + step - account.spare):
                    raise BlobSpaceFull("the ledger of the blob directory was replaced while this froze")
        account.change(held=nbytes)
        self._keep_watch(account)

    def _is_below(self, share: float) -> bool:
        """Whether no more than the share is taken, spare room included."""
        totals = self._book.peek()
        return totals is not None and totals.used <= min(int(share * self._limit), totals.ceiling)

    def _step_that_fits(self, book: OpenBook, account: Account, nbytes: int, share: float) -> int:
        """What may be taken besides the bytes, to be spare. The present spare room counts as free.

        Raises:
            BlobSpaceFull: the bytes do not fit. Our spare room goes back now, and that of others soon.
        """
        limit, totals = int(share * self._limit), book.read()

        def fits(more: int) -> bool:
            return totals.used - account.spare + more <= min(limit, totals.ceiling)

        if not totals.counted_within(COUNT_LIFE if fits(nbytes) else REFUSAL_LIFE):
            totals = self._count(book)[0]
        if not fits(nbytes):
            _change_taken(book, account, -account.spare)
            book.write(replace(book.read(), refused_at=time.time()))
            raise BlobSpaceFull(f"no room for {nbytes} bytes more in the blob directory")
        return self._step if fits(nbytes + self._step) and not totals.refused_within(SCARCE_LIFE) else 0

    def _balance(self, account: Account) -> None:
        """Take what a file used beyond its reservation, or give back what is more than two steps."""
        if not 0 <= account.spare <= 2 * self._step:
            self._set_spare(account, self._step if account.spare > 0 else 0)
        self._keep_watch(account)

    def _set_spare(self, account: Account, nbytes: int) -> None:
        """If the lock is not free in time, the next change of the account does it."""
        with suppress(BlobSpaceFull, FileNotFoundError), self._book.locked() as book:
            _change_taken(book, account, nbytes - account.spare)

    def _keep_watch(self, account: Account) -> None:
        if account.spare > 0:
            self._keeper = self._keeper or SpareKeeper(self.tend)
            self._keeper.wake()

    def tend(self) -> None:
        """Give all spare room back if it was not used lately or others need it, for the keeper."""
        with self._lock:
            account, totals = self._account(), self._book.peek()
            if not account.used or totals is None or totals.refused_within(SCARCE_LIFE):
                self._set_spare(account, 0)
            account.used = False
            if account.spare <= 0 and self._keeper is not None:
                self._keeper.rest()


def _change_taken(book: OpenBook, account: Account, more: int) -> bool:
    """Take room from the book, or give it back. False if the book was replaced; nothing was taken then."""
    account.change(taken=more)
    book.add(more)
    if more <= 0 or book.is_current():
        return True
    account.change(taken=-more)
    return False


_ledgers: weakref.WeakSet[FolderLedger] = weakref.WeakSet()


def _leave_accounts() -> None:
    for ledger in list(_ledgers):
        ledger.leave()


os.register_at_fork(after_in_child=_leave_accounts)
