"""The embedding cache: a hit is whole and right, everything else is a miss; bytes stay within their limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from epd.contracts.errors import NotFound
from epd.store.open import Store
from epd.store.values import Claim, Completed
from tests.contract.store_values import (
    HIDDEN,
    IMAGE,
    data_of,
    entry_of,
    key_of,
    new_job,
    put_embedding,
    wait_until,
    waiter_of,
)
from tests.store_kit import MakeStore

KEY, OTHER = key_of(1), key_of(2)
MIB = 1 << 20
ROWS_OF_A_QUARTER = MIB // 4 // (HIDDEN * 4)


def test_hits_and_misses_come_in_the_order_of_the_keys(store: Store) -> None:
    entry = put_embedding(store, KEY).entry
    assert store.embeddings.lookup([OTHER, KEY, KEY]) == [None, entry, entry]
    assert store.embeddings.lookup([]) == []
    stats = store.embeddings.stats()
    assert (stats.entries, stats.nbytes) == (1, entry.ref.nbytes)


def test_an_invalid_key_is_a_miss_and_never_a_path(store: Store) -> None:
    assert store.embeddings.lookup(["../../etc", "", "A" * 64]) == [None, None, None]
    with pytest.raises(NotFound):
        store.embeddings.path("../../etc/passwd")


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _garble(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * 16)


def _swap(path: Path) -> None:
    """A whole file of another key: as a mistaken copy would leave it."""
    text = path.read_bytes().replace(KEY.encode(), OTHER.encode())
    path.write_bytes(text)


def _pipe(path: Path) -> None:
    """Nobody writes to it, so opening it as a file would block for ever."""
    path.unlink()
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [Path.unlink, _truncate, _grow, _garble, _swap, _empty, _pipe, _device]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_miss_and_is_made_again(store: Store, damage: Callable[[Path], object]) -> None:
    entry = put_embedding(store, KEY).entry
    damage(store.embeddings.path(KEY))
    assert store.embeddings.lookup([KEY]) == [None]
    assert store.embeddings.stats().entries == 0
    assert not store.embeddings.path(KEY).exists()
    assert store.flights.claim(KEY, waiter_of(new_job(store))) is Claim.OWNED
    store.embeddings.publish_file(entry.ref, data_of(entry), {})
    store.flights.complete([Completed(entry, new_job(store), IMAGE, {})])
    assert store.embeddings.lookup([KEY]) == [entry]


def test_a_file_is_written_once(store: Store) -> None:
    entry = entry_of(KEY)
    store.embeddings.publish_file(entry.ref, data_of(entry, filler=1), {})
    first = store.embeddings.path(KEY).stat()
    store.embeddings.publish_file(entry.ref, data_of(entry, filler=2), {})
    assert store.embeddings.path(KEY).stat().st_ino == first.st_ino
    assert store.embeddings.path(KEY).read_bytes().endswith(b"\x01" * entry.ref.nbytes)
    assert list(store.embeddings.path(KEY).parent.iterdir()) == [store.embeddings.path(KEY)]


def test_a_damaged_file_without_an_entry_is_replaced(store: Store) -> None:
    entry = entry_of(KEY)
    path = store.embeddings.path(KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    store.embeddings.publish_file(entry.ref, data_of(entry), {})
    assert path.stat().st_size > entry.ref.nbytes


def test_data_that_disagrees_with_its_reference_is_refused(store: Store) -> None:
    entry = entry_of(KEY)
    with pytest.raises(ValueError, match="reference says"):
        store.embeddings.publish_file(entry.ref, memoryview(b"short"), {})
    assert not store.embeddings.path(KEY).exists()


def test_removing_takes_entry_and_file(store: Store) -> None:
    put_embedding(store, KEY)
    assert store.embeddings.remove([KEY, OTHER]) == 1
    assert not store.embeddings.path(KEY).parent.exists()
    assert store.embeddings.stats().nbytes == 0
    assert store.embeddings.remove([KEY]) == 0
    assert store.embeddings.remove([]) == 0


def test_the_least_recently_used_goes_first_index_and_file(make_store: MakeStore) -> None:
    store = make_store(embedding_bytes=MIB)
    keys = [key_of(number) for number in range(10, 14)]
    for key in keys:
        put_embedding(store, key, ROWS_OF_A_QUARTER)
        time.sleep(0.002)  # last uses differ by a millisecond
    assert store.embeddings.lookup([keys[0]]) != [None]
    put_embedding(store, key_of(20), ROWS_OF_A_QUARTER)
    found = store.embeddings.lookup([*keys, key_of(20)])
    assert [entry is not None for entry in found] == [True, False, True, True, True]
    assert not store.embeddings.path(keys[1]).exists()
    assert store.embeddings.stats().nbytes == MIB


def test_a_batch_does_not_evict_itself_for_others(make_store: MakeStore) -> None:
    store = make_store(embedding_bytes=MIB)
    for number in range(4):
        put_embedding(store, key_of(30 + number), ROWS_OF_A_QUARTER)
    entries = [entry_of(key_of(40 + number), ROWS_OF_A_QUARTER) for number in range(4)]
    for entry in entries:
        store.embeddings.publish_file(entry.ref, data_of(entry), {})
    store.flights.complete([Completed(entry, new_job(store), IMAGE, {}) for entry in entries])
    assert store.embeddings.lookup([entry.ref.key for entry in entries]) == entries
    assert store.embeddings.stats().entries == 4


def _put_apart(store: Store, *numbers: int) -> list[str]:
    """Embeddings of a quarter each, one used after the other; their keys."""
    for number in numbers:
        put_embedding(store, key_of(number), ROWS_OF_A_QUARTER)
        time.sleep(0.002)  # last uses differ by a millisecond
    return [key_of(number) for number in numbers]


def test_a_pinned_embedding_is_not_evicted_while_another_is_not(make_store: MakeStore) -> None:
    store = make_store(embedding_bytes=MIB)
    keys = _put_apart(store, 50, 51, 52, 53)
    assert store.embeddings.pin([*keys[:3], OTHER], 60) == [True] * 3 + [False]
    assert store.embeddings.pin(keys[:1], 0.001) == [True]  # which does not shorten it
    _put_apart(store, 60)
    found = store.embeddings.lookup([*keys, key_of(60)])
    assert [entry is not None for entry in found] == [True, True, True, False, True]
    assert store.embeddings.pin([], 1) == []


def test_the_newest_stays_where_all_others_are_pinned(make_store: MakeStore) -> None:
    store = make_store(embedding_bytes=MIB)
    keys = _put_apart(store, 50, 51, 52, 53)
    for number in range(60, 70):
        for key in keys:  # as one who reads everything
            assert store.embeddings.lookup([key], lease=60) != [None]
            time.sleep(0.002)
        keys = [*keys[1:], *_put_apart(store, number)]
        assert None not in store.embeddings.lookup(keys)
        assert store.embeddings.stats().nbytes == MIB
    assert len(list(store.embeddings.path(keys[0]).parent.parent.iterdir())) == 4


def test_an_expired_pin_has_no_effect(make_store: MakeStore) -> None:
    store = make_store(embedding_bytes=MIB)
    for number in range(4):
        put_embedding(store, key_of(70 + number), ROWS_OF_A_QUARTER)
    store.embeddings.pin([key_of(70 + number) for number in range(4)], 0.05)
    fresh = iter(range(80, 10_000))

    def another_fits() -> bool:
        key = key_of(next(fresh))
        put_embedding(store, key, ROWS_OF_A_QUARTER)
        return store.embeddings.lookup([key]) != [None]

    wait_until(another_fits)
    assert store.embeddings.stats().nbytes == MIB


def test_a_pinned_file_is_not_swept_and_a_damaged_one_is_removed(store: Store) -> None:
    put_embedding(store, KEY)
    store.embeddings.pin([KEY], 60)
    _truncate(store.embeddings.path(KEY))
    assert store.embeddings.lookup([KEY]) == [None]
    stray = entry_of(KEY)
    store.embeddings.publish_file(stray.ref, data_of(stray), {})
    assert store.embeddings.sweep(older_than=-60) == 0
    assert store.embeddings.path(KEY).exists()


def test_a_single_embedding_over_the_limit_is_evicted(make_store: MakeStore) -> None:
    store = make_store(embedding_bytes=MIB)
    put_embedding(store, KEY, 5 * ROWS_OF_A_QUARTER)
    assert store.embeddings.stats().nbytes == 0
    assert not store.embeddings.path(KEY).exists()


def test_an_entry_ends_with_its_ttl(make_store: MakeStore) -> None:
    store = make_store(embedding_ttl=0.2)
    put_embedding(store, KEY)
    wait_until(lambda: store.embeddings.lookup([KEY]) == [None])
    assert store.flights.claim(KEY, waiter_of(new_job(store))) is Claim.OWNED


def test_replacing_an_expired_entry_counts_its_bytes_once(make_store: MakeStore) -> None:
    store = make_store(embedding_ttl=0.1)
    entry = put_embedding(store, KEY).entry
    wait_until(lambda: store.embeddings.lookup([KEY]) == [None])
    put_embedding(store, KEY)
    assert (store.embeddings.stats().entries, store.embeddings.stats().nbytes) == (1, entry.ref.nbytes)


def test_the_sweep_removes_old_files_that_no_entry_names(store: Store) -> None:
    put_embedding(store, KEY)
    stray = entry_of(OTHER)
    store.embeddings.publish_file(stray.ref, data_of(stray), {})
    torn = store.embeddings.path(KEY).parent / ".tmp-of-a-killed-writer"
    torn.write_bytes(b"half")
    assert store.embeddings.sweep(older_than=60) == 0
    _age(torn, 120)
    for key in (KEY, OTHER):
        _age(store.embeddings.path(key), 120)
    assert store.embeddings.sweep(older_than=60) == 1
    assert (store.embeddings.path(OTHER).exists(), torn.exists()) == (False, False)
    assert store.embeddings.lookup([KEY]) != [None]


def _age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_reader_keeps_a_file_that_is_removed(store: Store) -> None:
    entry = put_embedding(store, KEY).entry
    with store.embeddings.path(KEY).open("rb") as file:
        store.embeddings.remove([KEY])
        assert len(file.read()) > entry.ref.nbytes
