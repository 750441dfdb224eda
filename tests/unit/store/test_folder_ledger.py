"""The ledger of the blob folder: exact across processes, and corrected after a kill at any point."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epd.contracts.errors import BlobSpaceFull
from epd.store.files import ledger as folder_ledger
from epd.store.files.ledger import FolderLedger
from tests.paths import ROOT

MIB = 1 << 20

#: Holds 600 KiB, writes 100 KiB of them, says so and waits to be killed.
HOLDER = """
import sys, time
from pathlib import Path
from epd.store.files.ledger import FolderLedger
folder = Path(sys.argv[1])
reservation = FolderLedger(folder, 1 << 20).reserve("s-held", 600 << 10, 1.0)
(folder / "s-held").write_bytes(bytes(100 << 10))
print("held", flush=True)
time.sleep(60)
"""

#: Takes and gives back room as fast as it can, and checks what it holds at most at once.
CHURNER = """
import sys
from pathlib import Path
from epd.contracts.errors import BlobSpaceFull
from epd.store.files.ledger import FolderLedger
folder, ledger, refused = Path(sys.argv[1]), FolderLedger(Path(sys.argv[1]), 100), 0
for number in range(300):
    name = f"r-{sys.argv[2]}-{number}"
    try:
        reservation = ledger.reserve(name, 40, 1.0)
    except BlobSpaceFull:
        refused += 1
        continue
    (folder / name).write_bytes(bytes(40))
    live = sum(file.stat().st_size for file in folder.glob("r-*") if file.exists()) if number % 50 == 0 else 0
    assert live <= 100, live
    (folder / name).unlink()
    ledger.settle(reservation, 0)
print(refused)
"""


def run_python(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = run_python(HOLDER, str(folder))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_space_held_by_another_process_counts_until_it_dies(tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path, MIB)
    with holder(tmp_path) as process:
        assert ledger.bytes_now() == 600 << 10
        assert ledger.count() == 0
        with pytest.raises(BlobSpaceFull):
            ledger.reserve("s-mine", 600 << 10, 1.0)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    time.sleep(folder_ledger.REFUSAL_LIFE)
    mine = ledger.reserve("s-mine", 600 << 10, 1.0)
    assert not (tmp_path / "s-held").exists()
    ledger.settle(mine, 0)
    assert ledger.bytes_now() == 0
    assert ledger.being_written() == frozenset()


def test_a_count_removes_the_files_of_dead_writers(tmp_path: Path) -> None:
    with holder(tmp_path):
        pass
    ledger = FolderLedger(tmp_path, MIB)
    assert (ledger.count(), ledger.count(), ledger.bytes_now()) == (1, 0, 0)


def test_processes_together_stay_below_the_limit(tmp_path: Path) -> None:
    running = [run_python(CHURNER, str(tmp_path), str(number)) for number in range(3)]
    ended = [(process.communicate(timeout=60), process.returncode) for process in running]
    assert [code for _, code in ended] == [0, 0, 0]
    ledger = FolderLedger(tmp_path, 100)
    assert ledger.bytes_now() == 0
    ledger.count()
    assert ledger.bytes_now() == 0


@pytest.mark.parametrize("damage", [b"", b"torn", b"\xff" * 24])
def test_damaged_totals_are_counted_again(tmp_path: Path, damage: bytes) -> None:
    ledger = FolderLedger(tmp_path, 100)
    ledger.settle(ledger.reserve("r-first", 10, 1.0), 0)
    (tmp_path / "r-other").write_bytes(bytes(70))
    (tmp_path / ".ledger" / "book").write_bytes(damage)
    with pytest.raises(BlobSpaceFull):
        ledger.reserve("r-second", 40, 1.0)
    assert ledger.bytes_now() == 70


def test_a_frozen_lock_holder_delays_others_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_ledger, "LOCK_SECONDS", 0.2)
    ledger = FolderLedger(tmp_path, 100)
    reservation = ledger.reserve("r-first", 10, 1.0)
    fd = os.open(tmp_path / ".ledger" / "book", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    began = time.monotonic()
    with pytest.raises(BlobSpaceFull, match="does not move"):
        ledger.reserve("r-second", 10, 1.0)
    (tmp_path / "r-done").write_bytes(bytes(5))
    assert ledger.delete([tmp_path / "r-done"]) == 1
    ledger.settle(reservation, 10)
    assert ledger.count() == 0
    assert ledger.room(1.0) == 90
    assert time.monotonic() - began < 2
    os.close(fd)
    ledger.count()
    assert ledger.bytes_now() == 0


def test_no_count_comes_between_a_deletion_and_its_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a count leaves the file out, and its bytes would be taken off a second time."""
    ledger = FolderLedger(tmp_path, 100)
    file = tmp_path / "r-done"
    reservation = ledger.reserve(file.name, 40, 1.0)
    file.write_bytes(bytes(40))
    ledger.settle(reservation, 40)
    lock = folder_ledger._lock_in_time
    there: list[bool] = []

    def lock_and_look(fd: int) -> None:
        there.append(file.exists())
        lock(fd)

    monkeypatch.setattr(folder_ledger, "_lock_in_time", lock_and_look)
    assert ledger.delete([file]) == 1
    assert there == [True]
    assert not file.exists()
    assert ledger.bytes_now() == 0


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
        ledger.reserve("r-first", 1, 1.0)  # less is free than is left for embeddings
    free[0][4] = headroom + 1000
    time.sleep(folder_ledger.REFUSAL_LIFE)
    reservation = ledger.reserve("r-first", 600, 1.0)
    with pytest.raises(BlobSpaceFull):
        ledger.reserve("r-second", 600, 1.0)
    assert ledger.room(1.0) == 400
    ledger.settle(reservation, 0)
