"""Room in bulk: few locks, spare room that goes back, and a frozen holder of the lock that is replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epd.contracts.errors import BlobSpaceFull
from epd.store.files import account, book
from epd.store.files.book import Book, OpenBook
from epd.store.files.ledger import FolderLedger
from tests.unit.store.test_folder_ledger import MIB, run_python, write

LIMIT = 4096 * MIB
STEP = 64 * MIB

#: Stops itself while it holds the lock: inside the block of ``locked``, or in the middle of a reservation.
FROZEN = """
import os, signal, sys
from pathlib import Path
from epd.contracts.errors import BlobSpaceFull
from epd.store.files.book import OpenBook
from epd.store.files.ledger import FolderLedger
folder, where = Path(sys.argv[1]), sys.argv[2]
ledger, add = FolderLedger(folder, 1000), OpenBook.add
ledger.drop(ledger.reserve("r", 10, 1.0))

def freeze():
    print("frozen", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def freeze_and_add(book, nbytes):
    OpenBook.add = add
    freeze()
    add(book, nbytes)

if where == "block":
    with ledger.locked() as open_book:
        freeze()
        print(open_book.is_current())
else:
    OpenBook.add = freeze_and_add
    try:
        ledger.reserve("r", 300, 1.0)
    except BlobSpaceFull as error:
        print(error)
"""


@pytest.fixture
def short_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "SPARE_LIFE", 0.1)


def used(ledger: FolderLedger) -> int:
    """What is taken from the book, spare room included."""
    with ledger.locked() as open_book:
        return open_book.read().used


def soon(ledger: FolderLedger, nbytes: int, within: float = 3.0) -> None:
    end = time.monotonic() + within
    while used(ledger) != nbytes:
        assert time.monotonic() < end, used(ledger)
        time.sleep(0.02)


def test_a_hundred_files_take_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[None] = []
    locked = Book.locked

    @contextmanager
    def counted(self: Book) -> Iterator[OpenBook]:
        rounds.append(None)
        with locked(self) as open_book:
            yield open_book

    monkeypatch.setattr(Book, "locked", counted)
    ledger = FolderLedger(tmp_path, LIMIT)
    for _ in range(100):
        reservation = ledger.reserve("s", 1 * MIB, 0.75)
        ledger.grow(reservation, 2 * MIB, 0.75)
        Path(reservation.path).write_bytes(b"x")
        ledger.finish(reservation)
        ledger.delete([tmp_path / reservation.name])
    assert len(rounds) == 1
    assert ledger.bytes_now() == 0


def test_room_taken_without_a_reservation_is_paid_for(tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path, LIMIT)
    reservation = ledger.reserve("r", 0, 1.0)
    with open(reservation.path, "xb") as file:
        file.truncate(2 * STEP)
    ledger.finish(reservation)
    assert used(ledger) == ledger.bytes_now() == 2 * STEP


def test_spare_room_goes_back_when_it_is_not_used(tmp_path: Path, short_life: None) -> None:
    ledger = FolderLedger(tmp_path, LIMIT)
    for _ in range(2):
        file = write(ledger, MIB)
        assert (used(ledger), ledger.bytes_now()) == (MIB + STEP, MIB)
        soon(ledger, MIB)
        ledger.delete([tmp_path / file.name])
        soon(ledger, 0)


def test_a_process_that_only_deletes_keeps_two_steps_at_most(tmp_path: Path) -> None:
    writer, reader = FolderLedger(tmp_path, LIMIT), FolderLedger(tmp_path, LIMIT)
    files = [write(writer, 30 * MIB) for _ in range(20)]
    before = used(writer)
    for file in files:
        reader.delete([tmp_path / file.name])
    assert before - used(writer) >= 600 * MIB - 2 * STEP
    assert writer.bytes_now() == 0


def test_the_spare_room_of_a_busy_process_refuses_nobody_for_long(tmp_path: Path, short_life: None) -> None:
    limit = 64 * MIB
    busy, other = FolderLedger(tmp_path, limit), FolderLedger(tmp_path, limit)
    busy.drop(busy.reserve("r", 10, 1.0))
    with pytest.raises(BlobSpaceFull):
        other.reserve("r", limit - 100, 1.0)
    assert other.room(1.0) > 0
    end = time.monotonic() + 3
    while True:
        busy.drop(busy.reserve("r", 10, 1.0))
        try:
            other.drop(other.reserve("r", limit - 100, 1.0))
            break
        except BlobSpaceFull:
            assert time.monotonic() < end
        time.sleep(0.01)
    busy.drop(busy.reserve("r", 10, 1.0))
    other.reserve("r", limit - 100, 1.0)


def test_sources_leave_a_quarter_to_others_out_of_the_spare_room_too(tmp_path: Path) -> None:
    limit = 64 * MIB
    ledger = FolderLedger(tmp_path, limit)
    write(ledger, limit * 3 // 4 - 10)
    kept = write(ledger, 20)
    with pytest.raises(BlobSpaceFull):
        ledger.reserve("s", 10, 0.75)
    ledger.delete([tmp_path / kept.name])
    ledger.reserve("s", 10, 0.75)
    with pytest.raises(BlobSpaceFull):
        ledger.reserve("s", 1, 0.75)


@pytest.mark.parametrize(
    ("where", "says"),
    [("block", "False"), ("reservation", "the ledger of the blob directory was replaced while this froze")],
)
def test_a_frozen_holder_of_the_lock_stops_nobody_for_long(tmp_path: Path, where: str, says: str) -> None:
    process = run_python(FROZEN, tmp_path, where)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "frozen\n"
        ledger, began = FolderLedger(tmp_path, 1000), time.monotonic()
        file = write(ledger, 500)
        assert book.LOCK_SECONDS <= time.monotonic() - began < book.LOCK_SECONDS + 1
        began = time.monotonic()
        for _ in range(20):
            ledger.drop(ledger.reserve("r", 200, 1.0))
        assert time.monotonic() - began < 1
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline().strip() == says
        ledger.count()
        assert used(ledger) == ledger.bytes_now() == 500
        ledger.delete([tmp_path / file.name])
    finally:
        process.kill()
        process.communicate(timeout=10)
