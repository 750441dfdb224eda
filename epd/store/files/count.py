"""Counting: new totals from the files and the accounts in a folder, without what dead processes left."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from epd.store.files.account import WRITING, read_accounts, remove_dead
from epd.store.files.book import OpenBook, Totals

#: Bytes left free on the device for embeddings, which usually share it: 1/32 of it, but at most this.
_HEADROOM = 256 << 20


def count_files(folder: Path, ledger: Path, book: OpenBook) -> tuple[Totals, int]:
    """Make new totals, and write them into the locked book.

    Files may be completed and deleted during the count. Each is counted at least once, since the accounts
    are read before and after the files, see ``epd.store.files.account``. Which of them are live is found
    last, because an unfinished file without a live account counts as a dead writer's.

    Returns:
        The totals, and how many files of dead writers were deleted.
    """
    before, sizes = read_accounts(ledger), sizes_of(folder)
    unfinished = {name: sizes_of(folder / WRITING / name) for name in _names_in(folder / WRITING)}
    live = {name: figures for name, figures in read_accounts(ledger).items() if not remove_dead(ledger, name)}
    removed = [_remove(folder / WRITING / name) for name in unfinished if name not in live]
    taken = 0
    for name, figures in live.items():
        finished = before[name].finished if name in before else 0
        taken += max(figures.taken - finished + figures.freed, figures.held)
    used = taken + sum(sizes.values())
    written = sum(sum(files.values()) for name, files in unfinished.items() if name in live)
    unwritten = max(0, taken - written)
    ceiling = used + max(0, _device_room(folder) - unwritten)
    totals = replace(book.read(), used=used, ceiling=ceiling, counted_at=time.time())
    book.write(totals)
    return totals, sum(removed)


def _remove(folder: Path) -> int:
    """Remove what a dead process was writing. Returns how many files that were."""
    files = _names_in(folder)
    for name in files:
        (folder / name).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        folder.rmdir()
    return len(files)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def size_of(path: str | Path) -> int | None:
    """The size of a file in bytes; None if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def sizes_of(folder: Path) -> dict[str, int]:
    """The sizes in bytes of the files in a folder, by name."""
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(folder):
            with suppress(FileNotFoundError):
                if file.is_file(follow_symlinks=False):
                    sizes[file.name] = file.stat(follow_symlinks=False).st_size
    return sizes


def _device_room(folder: Path) -> int:
    """Bytes that the device still takes, less the headroom."""
    device = os.statvfs(folder)
    return device.f_bavail * device.f_frsize - min(_HEADROOM, device.f_blocks * device.f_frsize // 32)
