"""The ledger of the blob folder: exact across processes, and corrected after a kill at any point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epd.contracts.errors import BlobSpaceFull
from epd.store.files import ledger as folder_ledger
from epd.store.files.ledger import FolderLedger, Reservation
from tests.paths import ROOT

MIB = 1 << 20

#: Holds 600 KiB, writes 100 KiB of them, says so and waits to be killed.
HOLDER = """
import sys, time
from pathlib import Path
from epd.store.files.ledger import FolderLedger
folder = Path(sys.argv[1])
reservation = FolderLedger(folder, int(sys.argv[2])).reserve("s", 600 << 10, 1.0)
Path(reservation.path).write_bytes(bytes(100 << 10))
print("held", flush=True)
time.sleep(60)
"""

#: Takes and gives back room as fast as it can. All that run at once note in one file how much they hold.
CHURNER = """
import fcntl, os, sys
from pathlib import Path
from epd.contracts.errors import BlobSpaceFull
from epd.store.files.ledger import FolderLedger
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
ledger, refused, nbytes = FolderLedger(folder, limit), 0, limit * 2 // 5
tally = os.open(folder.with_suffix(".tally"), os.O_RDWR | os.O_CREAT)

def note(more):
    fcntl.flock(tally, fcntl.LOCK_EX)
    held = int(os.pread(tally, 20, 0) or 0) + more
    os.pwrite(tally, b"%20d" % held, 0)
    fcntl.flock(tally, fcntl.LOCK_UN)
    assert held <= limit, held

for _ in range(300):
    try:
        reservation = ledger.reserve("r", nbytes, 1.0)
    except BlobSpaceFull:
        refused += 1
        continue
    note(nbytes)
    with open(reservation.path, "xb") as file:
        file.truncate(nbytes)
    ledger.finish(reservation)
    note(-nbytes)
    assert ledger.delete([folder / reservation.name]) == 1
print(refused)
"""

#: Reserves room and forks a child that does nothing, says the child's id, and waits to be killed.
FORKING = """
import os, sys, time
from pathlib import Path
from epd.store.files.ledger import FolderLedger
folder = Path(sys.argv[1])
ledger = FolderLedger(folder, 1 << 20)
ledger.reserve("s", 600 << 10, 1.0)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def run_python(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@contextmanager
def holder(folder: Path, limit: int = MIB) -> Iterator[subprocess.Popen[str]]:
    process = run_python(HOLDER, folder, limit)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def write(ledger: FolderLedger, nbytes: int, letter: str = "r") -> Reservation:
    reservation = ledger.reserve(letter, nbytes, 1.0)
    with open(reservation.path, "xb") as file:
        file.truncate(nbytes)
    ledger.finish(reservation)
    return reservation


def test_space_held_by_another_process_counts_until_it_dies(tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path, MIB)
    with holder(tmp_path) as process:
        assert ledger.bytes_now() == 600 << 10
        assert ledger.count() == 0
        with pytest.raises(BlobSpaceFull):
            ledger.reserve("s", 600 << 10, 1.0)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    time.sleep(folder_ledger.REFUSAL_LIFE)
    mine = ledger.reserve("s", 600 << 10, 1.0)
    assert list(tmp_path.glob(".writing/*/*")) == []
    ledger.drop(mine)
    assert ledger.bytes_now() == 0


@pytest.mark.parametrize("limit", [MIB, 4096 * MIB])
def test_a_count_removes_what_dead_writers_left(tmp_path: Path, limit: int) -> None:
    with holder(tmp_path, limit):
        assert len(list(tmp_path.glob(".writing/*/*"))) == 1
    ledger = FolderLedger(tmp_path, limit)
    assert (ledger.count(), ledger.count(), ledger.bytes_now()) == (1, 0, 0)
    assert sorted(file.name for file in tmp_path.rglob("*")) == [".ledger", ".writing", "book"]
    assert ledger.room(1.0) == limit


def test_a_child_does_not_keep_the_room_of_its_dead_parent(tmp_path: Path) -> None:
    parent = run_python(FORKING, tmp_path)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        ledger = FolderLedger(tmp_path, MIB)
        assert ledger.bytes_now() == 600 << 10
        parent.kill()
        parent.wait(10)
        ledger.count()
        assert ledger.bytes_now() == 0
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate(timeout=10)


@pytest.mark.parametrize("limit", [100, 64 * MIB])
def test_processes_together_stay_below_the_limit(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "blobs"
    folder.mkdir()
    running = [run_python(CHURNER, folder, limit) for _ in range(3)]
    ended = [(process.communicate(timeout=60), process.returncode) for process in running]
    assert [code for _, code in ended] == [0, 0, 0]
    ledger = FolderLedger(folder, limit)
    assert ledger.bytes_now() == 0
    ledger.count()
    assert ledger.bytes_now() == 0
    assert ledger.room(1.0) == limit


@pytest.mark.parametrize("damage", [b"", b"torn", b"\xff" * 32])
def test_damaged_totals_are_counted_again(tmp_path: Path, damage: bytes) -> None:
    ledger = FolderLedger(tmp_path, 100)
    ledger.drop(ledger.reserve("r", 10, 1.0))
    (tmp_path / "r-other").write_bytes(bytes(70))
    (tmp_path / ".ledger" / "book").write_bytes(damage)
    with pytest.raises(BlobSpaceFull):
        ledger.reserve("r", 40, 1.0)
    assert ledger.bytes_now() == 70


@pytest.mark.parametrize("limit", [100, 64 * MIB])
def test_a_count_during_a_deletion_takes_nothing_off_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    ledger, other = FolderLedger(tmp_path, limit), FolderLedger(tmp_path, limit)
    first, second = write(ledger, 40), write(ledger, 40)
    unlink = os.unlink

    def unlink_between_counts(path: str) -> None:
        other.count()
        unlink(path)
        other.count()

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink_between_counts)
        assert ledger.delete([tmp_path / first.name]) == 1
    assert ledger.bytes_now() == 40
    assert ledger.delete([tmp_path / second.name, tmp_path / first.name]) == 1
    assert ledger.bytes_now() == 0


def test_a_count_misses_no_file_that_comes_or_goes_while_it_reads(tmp_path: Path) -> None:
    """There are always at least three files, each new one before the oldest goes."""
    ledger, over = FolderLedger(tmp_path, 4096 * MIB), threading.Event()
    files = [write(ledger, MIB) for _ in range(3)]

    def churn() -> None:
        while not over.is_set():
            files.append(write(ledger, MIB))
            ledger.delete([tmp_path / files.pop(0).name])

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            ledger.count()
            # All files and all accounts, as counted. The account holds at most two steps.
            with ledger.locked() as book:
                assert book.read().used >= 3 * MIB
    finally:
        over.set()
        thread.join(10)
    ledger.count()
    assert ledger.bytes_now() == 3 * MIB


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    for limit in (100, 4096 * MIB):
        folder = tmp_path / str(limit)
        ledger = FolderLedger(folder, limit)
        write(ledger, 10)
        folder.rename(tmp_path / f"{limit}-away")
        reservation = ledger.reserve("r", 10, 1.0)
        ledger.restore()
        Path(reservation.path).write_bytes(bytes(10))
        assert FolderLedger(folder, limit).count() == 0
        ledger.finish(reservation)
        assert (folder / reservation.name).exists()


def test_a_device_that_is_nearly_full_bounds_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = os.statvfs(tmp_path)
    free = [list(device)]
    free[0][1], free[0][2], free[0][4] = 1, 64 * MIB, MIB  # frsize, blocks, bavail
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(free[0]))
    headroom = 64 * MIB // 32
    ledger = FolderLedger(tmp_path, 100 * MIB)
    with pytest.raises(BlobSpaceFull):
        ledger.reserve("r", 1, 1.0)  # less is free than is left for embeddings
    free[0][4] = headroom + 1000
    time.sleep(folder_ledger.REFUSAL_LIFE)
    reservation = ledger.reserve("r", 600, 1.0)
    with pytest.raises(BlobSpaceFull):
        ledger.reserve("r", 600, 1.0)
    assert ledger.room(1.0) == 400
    ledger.drop(reservation)
