"""L1 overflows into L2 in the background, used entries come back, and each tier has a limit of bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.contracts.errors import SettingsError
from epd.store.values import Claim
from tests.contract.cache.tier_kit import KEPT, MIB, MakeStore, Tiers, two_tiers
from tests.contract.store_values import key_of, new_job, wait_until, waiter_of


@pytest.fixture
def tiers(make_store: MakeStore, tmp_path: Path) -> Tiers:
    return two_tiers(make_store, tmp_path)


def test_l1_overflows_into_l2_and_all_stay_hits(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    assert tiers.names(tiers.l1) == set(keys[1:])
    assert tiers.names(tiers.l2) == {keys[0]}
    stats = tiers.store.embeddings.stats()
    assert stats.l2 is not None
    assert (stats.entries, stats.l2.entries, stats.l2.nbytes) == (KEPT, 1, MIB // 4)
    assert tiers.hits(keys) == [True] * 4
    assert all(tiers.is_right(key) for key in keys)
    assert stats.totals.demotions == stats.totals.evicted_l1 == 1
    assert stats.totals.dropped == 0


def test_a_hit_in_l2_is_served_from_there_at_once_and_promoted_later(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    assert tiers.hits([keys[0]]) == [True]
    assert tiers.store.embeddings.path(keys[0]) == tiers.file(tiers.l2, keys[0])
    assert tiers.is_right(keys[0])
    assert tiers.store.embeddings.move(5).promoted == 1
    assert tiers.store.embeddings.path(keys[0]) == tiers.file(tiers.l1, keys[0])
    assert tiers.is_right(keys[0])
    tiers.settle()
    # It was used last, so another went to make room for it; its copy in L2 is kept.
    assert tiers.names(tiers.l1) == {keys[0], keys[2], keys[3]}
    assert tiers.names(tiers.l2) == {keys[0], keys[1]}
    assert tiers.store.embeddings.stats().totals.promotions == 1


def test_going_to_l2_again_costs_no_second_copy(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    tiers.hits([keys[0]])
    tiers.settle()
    inode = tiers.file(tiers.l2, keys[0]).stat().st_ino
    tiers.put(5, 6, 7)
    tiers.settle()
    assert keys[0] not in tiers.names(tiers.l1)
    assert tiers.file(tiers.l2, keys[0]).stat().st_ino == inode
    assert tiers.hits([keys[0]]) == [True]


def test_both_tiers_stay_within_their_bytes_and_drop_the_oldest(tiers: Tiers) -> None:
    keys = []
    for number in range(20):
        keys += tiers.put(number)
        tiers.settle()
        stats = tiers.store.embeddings.stats()
        assert stats.l2 is not None
        assert stats.nbytes <= stats.limit == MIB
        assert stats.l2.nbytes <= stats.l2.limit == 2 * MIB
    assert tiers.names(tiers.l1) == set(keys[-KEPT:])
    assert tiers.names(tiers.l2) == set(keys[-KEPT - 8 : -KEPT])
    assert tiers.hits(keys) == [False] * (20 - KEPT - 8) + [True] * (KEPT + 8)
    totals = tiers.store.embeddings.stats().totals
    assert totals.dropped == totals.evicted_l2 == 20 - KEPT - 8


def test_a_burst_beyond_what_is_copied_holds_the_limit_of_l1(tiers: Tiers) -> None:
    keys = tiers.put(*range(10))
    assert tiers.store.embeddings.stats().nbytes == MIB
    assert tiers.hits(keys) == [False] * 6 + [True] * 4
    totals = tiers.store.embeddings.stats().totals
    assert totals.dropped == totals.evicted_l1 == 6
    assert tiers.names(tiers.l1) == set(keys[6:])


def test_pinned_files_stay_in_their_tier(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.store.embeddings.pin(keys[:1], 60)
    tiers.settle()
    assert tiers.names(tiers.l2) == {keys[1]}
    tiers.store.embeddings.pin([keys[1]], 60)
    for number in range(10, 30):
        tiers.put(number)
        tiers.settle()
    assert keys[1] in tiers.names(tiers.l2)
    assert keys[0] in tiers.names(tiers.l1)
    assert tiers.hits(keys[:2]) == [True, True]


def test_a_lookup_with_a_lease_pins(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.store.embeddings.lookup(keys[:1], lease=60)
    tiers.put(5, 6, 7, 8, 9)
    assert tiers.hits(keys) == [True, False, False, False]


def test_a_holder_ends_only_its_own_pins(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3)
    tiers.store.embeddings.lookup(keys, lease=60, holder="a")
    tiers.store.embeddings.pin(keys[:1], 60, "a")  # renewed
    tiers.store.embeddings.lookup(keys[1:2], lease=60, holder="b")
    tiers.store.embeddings.pin(keys[2:], 60)
    assert pinned_of(tiers) == set(keys)
    for holder in ("b", "", "a", "a"):  # as often as it likes
        tiers.store.embeddings.unpin([*keys, key_of(9)], holder)
    assert pinned_of(tiers) == set(keys[1:])
    tiers.store.embeddings.unpin([], "a")
    tiers.store.embeddings.lookup(keys[:1], lease=60, holder="b")
    tiers.store.embeddings.unpin(keys[:1], "b")
    assert pinned_of(tiers) == set(keys[1:])


def pinned_of(tiers: Tiers) -> set[str]:
    return {row.entry.ref.key for row in tiers.store.embeddings.scan().rows if row.pinned}


def test_removing_takes_the_files_of_both_tiers(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    tiers.hits(keys[:1])
    tiers.settle()
    assert tiers.store.embeddings.remove(keys) == 4
    assert tiers.names(tiers.l1) == tiers.names(tiers.l2) == set()
    stats = tiers.store.embeddings.stats()
    assert stats.l2 is not None
    assert (stats.nbytes, stats.l2.nbytes, stats.l2.entries) == (0, 0, 0)
    assert tiers.store.flights.claim(keys[0], waiter_of(new_job(tiers.store))) is Claim.OWNED


def test_an_embedding_removed_during_its_copy_leaves_no_copy(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tiers.put(1, 2, 3, 4)
    index = tiers.store.embeddings._index  # type: ignore[attr-defined]
    done = index.demoted
    monkeypatch.setattr(
        index, "demoted", lambda *args: (tiers.store.embeddings.remove(keys[:1]), done(*args))[1]
    )
    assert tiers.store.embeddings.move(5).demoted == 0
    assert tiers.names(tiers.l2) == set()
    assert tiers.hits(keys) == [False, True, True, True]


def test_only_one_moves_at_a_time(make_store: MakeStore, tmp_path: Path, tiers: Tiers) -> None:
    tiers.put(1, 2, 3, 4)
    index = tiers.store.embeddings._index  # type: ignore[attr-defined]
    assert index.work("other", lease=0.2, most=1) is not None
    assert tiers.store.embeddings.move(5).demoted == 0
    wait_until(lambda: tiers.store.embeddings.move(5).demoted == 1)


def test_a_missing_file_in_l1_is_served_from_l2(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    tiers.hits(keys[:1])
    tiers.settle()
    tiers.file(tiers.l1, keys[0]).unlink()
    assert tiers.hits(keys[:1]) == [True]
    assert tiers.is_right(keys[0])
    assert tiers.hits(keys[:1]) == [True]
    tiers.settle()
    assert keys[0] in tiers.names(tiers.l1)


def test_an_embedding_only_in_l2_is_a_miss_without_l2(make_store: MakeStore, tmp_path: Path) -> None:
    tiers = two_tiers(make_store, tmp_path)
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    single = make_store(embedding_bytes=MIB, embedding_dir=tiers.l1)
    found = single.embeddings.lookup(keys)
    assert [entry is not None for entry in found] == [False, True, True, True]
    assert single.embeddings.stats().l2 is None
    assert single.embeddings.move(1).more is False


def test_hits_are_counted_by_tier_and_misses_by_claim(tiers: Tiers) -> None:
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    before = tiers.store.embeddings.stats().totals
    assert before.misses == 4
    tiers.store.embeddings.lookup([*keys, key_of(9)], counted=True)
    tiers.store.embeddings.lookup(keys)
    waiter = waiter_of(new_job(tiers.store))
    for _ in range(2):
        tiers.store.flights.claim(key_of(9), waiter)
    after = tiers.store.embeddings.stats().totals
    assert (after.hits_l1, after.hits_l2, after.misses) == (3, 1, 5)


def test_a_second_tier_that_cannot_be_written_is_a_wrong_setting(
    make_store: MakeStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="EPD_L2_DIR"):
        make_store(l2_dir=tmp_path / "file" / "below")
