"""Places of segments: found by key, replaced, bounded, and forgotten in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from epd.store import keys
from epd.store.open import Store
from epd.store.records import SegmentPlace
from tests.contract.store_values import key_of, wait_until

MakeStore = Callable[..., Store]


def place(number: int, start: int = 0) -> SegmentPlace:
    return SegmentPlace(parent=key_of(number), start=start, rows=1500, checksum=0xDEADBEEF)


def test_places_come_back_in_the_order_of_the_keys(store: Store) -> None:
    assert store.segments.find([]) == []
    assert store.segments.find([key_of(1)]) == [None]
    store.segments.note({key_of(1): place(10), key_of(2): place(11, 3000)})
    assert store.segments.find([key_of(2), key_of(3), key_of(1)]) == [place(11, 3000), None, place(10)]
    store.segments.note({})
    assert store.segments.count() == 2


def test_a_newer_place_takes_the_stead_of_an_older(store: Store) -> None:
    store.segments.note({key_of(1): place(10)})
    store.segments.note({key_of(1): place(12, 1500)})
    assert store.segments.find([key_of(1)]) == [place(12, 1500)]
    assert store.segments.count() == 1


@pytest.mark.parametrize("count", [100, 2500])
def test_their_number_is_bounded(make_store: MakeStore, count: int) -> None:
    store = make_store(segments=50)
    store.segments.note({key_of(number): place(number) for number in range(count)})
    for number in range(3):  # a bound that is far exceeded is reached in steps
        store.segments.note({key_of(number): place(number)})
    assert store.segments.count() == 50
    found = store.segments.find([key_of(number) for number in range(count)])
    assert sum(one is not None for one in found) == 50


def test_all_are_forgotten_in_time(make_store: MakeStore) -> None:
    store = make_store(embedding_ttl=0.3)
    store.segments.note({key_of(1): place(10)})
    wait_until(lambda: store.segments.count() == 0)
    assert store.segments.find([key_of(1)]) == [None]


def test_what_cannot_be_read_is_not_known(make_store: MakeStore, server: redis.Redis) -> None:
    store = make_store()
    store.segments.note({key_of(number): place(number) for number in range(4)})
    fields = sorted(server.hkeys(keys.SEGMENTS))
    for field, text in zip(fields, ("", "a.b.c", "###.1.2.3", "x.1.2.zz"), strict=True):
        server.hset(keys.SEGMENTS, field, text)
    for found in store.segments.find([key_of(number) for number in range(4)]):
        assert found is None or found.parent != key_of(0)


def test_a_place_is_small(make_store: MakeStore, server: redis.Redis) -> None:
    make_store().segments.note({key_of(7 * number): place(number, 1500 * number) for number in range(20_000)})
    nbytes = server.memory_usage(keys.SEGMENTS, samples=0)
    assert nbytes is not None
    assert nbytes / 20_000 < 200
