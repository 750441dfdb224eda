"""Faults of the tiers: damaged copies, a full disk, a mover killed between two steps. No wrong hit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from epd.store.cache import mover
from tests.contract.cache.tier_kit import Tiers, two_tiers
from tests.store_kit import MakeStore


@pytest.fixture
def tiers(make_store: MakeStore, tmp_path: Path) -> Tiers:
    return two_tiers(make_store, tmp_path)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 0x10
    path.write_bytes(bytes(data))


def _flip_header(path: Path) -> None:
    """Only the check of all bytes sees what a header says besides shape and key."""
    data = path.read_bytes()
    assert b'"tokens":"' in data
    path.write_bytes(data.replace(b'"tokens":"', b'"tokenz":"'))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_bytes(b"else")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


SEEN_BY_SIZE = [_truncate, _folder, _pipe, _empty, Path.unlink]
DAMAGES = pytest.mark.parametrize("damage", [_flip, _flip_header, *SEEN_BY_SIZE])


@DAMAGES
def test_a_damaged_file_in_l2_is_a_miss_and_is_removed(
    tiers: Tiers, damage: Callable[[Path], object]
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    damage(tiers.file(tiers.l2, keys[0]))
    assert tiers.hits(keys) == [False, True, True, True]
    assert not tiers.file(tiers.l2, keys[0]).exists()
    stats = tiers.store.embeddings.stats()
    assert stats.l2 is not None
    assert (stats.l2.entries, stats.l2.nbytes) == (0, 0)
    assert stats.totals.corrupt == (damage is not Path.unlink)
    tiers.put(1)
    assert tiers.is_right(keys[0])


@DAMAGES
def test_a_file_that_is_damaged_between_hit_and_promotion_is_not_promoted(
    tiers: Tiers, damage: Callable[[Path], object]
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    assert tiers.hits(keys[:1]) == [True]
    damage(tiers.file(tiers.l2, keys[0]))
    moved = tiers.store.embeddings.move(5)
    assert (moved.promoted, moved.failed) == (0, 1)
    assert keys[0] not in tiers.names(tiers.l1)
    assert tiers.hits(keys) == [False, True, True, True]


@pytest.mark.parametrize("damage", SEEN_BY_SIZE)
def test_a_damaged_file_in_l1_is_not_copied(tiers: Tiers, damage: Callable[[Path], object]) -> None:
    keys = tiers.put(1, 2, 3, 4)
    damage(tiers.file(tiers.l1, keys[0]))
    assert tiers.store.embeddings.move(5).demoted == 0
    tiers.settle()
    assert tiers.hits(keys) == [False, True, True, True]
    assert not tiers.file(tiers.l1, keys[0]).exists()


def test_a_full_second_tier_drops_the_copy_counts_it_and_rests(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    now = 100.0
    monkeypatch.setattr(mover.time, "monotonic", lambda: now)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if str(tiers.l2) in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    moved = tiers.store.embeddings.move(5)
    assert (moved.demoted, moved.failed, moved.more) == (0, 1, False)
    assert "was not moved: no room left" in caplog.text
    assert list(tiers.l2.iterdir()) == []
    assert tiers.hits(keys) == [True] * 4
    assert tiers.store.embeddings.move(5).failed == 0  # it rests, and asks the disk again later
    assert tiers.store.embeddings.stats().totals.failed_moves == 1
    monkeypatch.setattr(os, "write", write)
    now += mover.PAUSE + 1
    assert tiers.store.embeddings.move(5).demoted == 1


def _take_away(root: Path) -> None:
    """A mount is taken away, and the folder that it was on too."""
    root.rename(root.with_name("unmounted"))


def _take_away_the_mount(root: Path) -> None:
    """The same, only that the folder stays: it is on the file system below then."""
    _take_away(root)
    root.symlink_to("/dev/shm", target_is_directory=True)


@pytest.mark.parametrize("take_away", [_take_away, _take_away_the_mount])
def test_nothing_is_written_below_a_second_tier_that_is_lost(
    tiers: Tiers,
    take_away: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    take_away(tiers.l2)
    assert os.path.lexists(tiers.l2) == (take_away is _take_away_the_mount)
    moved = tiers.store.embeddings.move(5)
    assert (moved.demoted, moved.failed, moved.more) == (0, 1, False)
    assert f"embedding {keys[0]} was not moved" in caplog.text
    assert tiers.store.embeddings.stats().totals.failed_moves == 1
    assert not (tiers.l2 / keys[0]).exists()
    assert tiers.hits(keys) == [True] * 4
    tiers.l2.unlink(missing_ok=True)
    assert not tiers.l2.exists()
    tiers.l2.with_name("unmounted").rename(tiers.l2)
    now = mover.time.monotonic()
    monkeypatch.setattr(mover.time, "monotonic", lambda: now + mover.PAUSE + 1)
    assert tiers.store.embeddings.move(5).demoted == 1


class _DiesError(Exception):
    """The process ends here."""


def _die(*_: object) -> None:
    raise _DiesError


def test_a_mover_that_dies_before_the_index_knows_leaves_a_file_to_sweep(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    index = tiers.store.embeddings._index  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(index, "demoted", _die)
        with pytest.raises(_DiesError):
            tiers.store.embeddings.move(5)
    assert tiers.names(tiers.l2) == {keys[0]}
    assert tiers.store.embeddings.stats().nbytes == 4 * (1 << 18)
    assert tiers.store.embeddings.sweep(older_than=-60) == 1
    assert tiers.names(tiers.l2) == set()
    assert tiers.hits(keys) == [True] * 4
    tiers.settle()
    assert tiers.names(tiers.l2) == {keys[0]}


def test_the_next_mover_replaces_what_a_dead_one_left(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tiers.put(1, 2, 3, 4)
    index = tiers.store.embeddings._index  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(index, "demoted", _die)
        with pytest.raises(_DiesError):
            tiers.store.embeddings.move(5)
    _flip(tiers.file(tiers.l2, keys[0]))
    tiers.settle()
    assert tiers.hits(keys) == [True] * 4
    assert all(tiers.is_right(key) for key in keys)


def test_a_mover_that_dies_before_it_deletes_leaves_a_file_to_sweep(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    first = tiers.store.embeddings._files.l1  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(first, "remove", _die)
        with pytest.raises(_DiesError):
            tiers.store.embeddings.move(5)
    assert tiers.names(tiers.l1) == set(keys)
    assert tiers.names(tiers.l2) == {keys[0]}
    assert tiers.hits(keys) == [True] * 4
    assert tiers.store.embeddings.sweep(older_than=-60) == 1
    assert tiers.names(tiers.l1) == set(keys[1:])
    assert tiers.hits(keys) == [True] * 4


def test_a_promotion_that_dies_before_the_index_knows_leaves_a_file_to_sweep(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    tiers.hits(keys[:1])
    index = tiers.store.embeddings._index  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(index, "promoted", _die)
        with pytest.raises(_DiesError):
            tiers.store.embeddings.move(5)
    assert tiers.names(tiers.l1) == set(keys)
    assert tiers.store.embeddings.sweep(older_than=-60) == 1
    assert tiers.hits(keys) == [True] * 4
    tiers.settle()
    assert keys[0] in tiers.names(tiers.l1)


def test_a_file_that_moves_while_it_is_looked_up_is_a_hit(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    index = tiers.store.embeddings._index  # type: ignore[attr-defined]
    read = index.read

    def slow(*args: object, **options: object) -> object:
        known = read(*args, **options)
        monkeypatch.setattr(index, "read", read)
        tiers.settle()
        return known

    monkeypatch.setattr(index, "read", slow)
    assert tiers.hits(keys) == [True] * 4
    assert tiers.names(tiers.l2) == {keys[0]}
