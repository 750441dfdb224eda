"""Handoffs: completed once, read many times, announced to waiters, and expired in time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from epd.contracts.embedding import Metadata
from epd.contracts.errors import HandoffConflict, InvalidRequest, NotFound
from epd.contracts.handoff import Handoff, HandoffRequest, Placement, handoff_topic
from epd.store import keys
from epd.store.open import Store
from epd.store.values import MAX_WATCHERS
from tests.contract.store_values import entry_of, key_of, listen_until, put_embedding, wait_until
from tests.store_kit import MakeStore

ID = "chatcmpl-7f:0"


def request_of(*numbers: int, length: int = 4, **fields: object) -> HandoffRequest:
    """A prompt of items of four rows each, some text between them."""
    items = [Placement(key=key_of(n), offset=3 + 10 * at, length=length) for at, n in enumerate(numbers)]
    return HandoffRequest.model_validate({"items": items, **fields})


def test_a_handoff_is_read_with_the_metadata_of_the_index(store: Store) -> None:
    entries = [put_embedding(store, key_of(n)).entry for n in (1, 2)]
    extra = {"stop": ["\n"], "deep": {"x": [1, 2.5, None, True]}}
    put = store.handoffs.put(ID, request_of(1, 2, 1, mrope_position_delta=-7, prompt_tokens=40, extra=extra))
    assert put.created
    found = store.handoffs.get(ID)
    assert found == put.handoff
    assert found is not None
    assert [item.metadata for item in found.items] == [
        entries[0].metadata,
        entries[1].metadata,
        entries[0].metadata,
    ]
    assert [(item.key, item.offset, item.length) for item in found.items] == [
        (key_of(1), 3, 4), (key_of(2), 13, 4), (key_of(1), 23, 4)
    ]  # fmt: skip
    assert (found.mrope_position_delta, found.prompt_tokens, found.extra) == (-7, 40, extra)
    assert found.request_id == ID
    assert Handoff.from_json(found.to_json()) == found


def test_reading_takes_nothing_away_and_needs_no_embedding(store: Store) -> None:
    put_embedding(store, key_of(1))
    put = store.handoffs.put(ID, request_of(1)).handoff
    store.embeddings.remove([key_of(1)])
    assert [store.handoffs.get(ID) for _ in range(3)] == [put] * 3


def test_a_prompt_without_media_may_be_handed_over(store: Store) -> None:
    assert store.handoffs.get(ID) is None
    store.handoffs.put(ID, request_of(extra={"kv": 3}))
    found = store.handoffs.get(ID)
    assert found is not None
    assert (found.items, found.extra) == ((), {"kv": 3})


def test_runs_of_placeholders_are_kept(store: Store) -> None:
    put_embedding(store, key_of(1))
    item = Placement(key=key_of(1), offset=2, length=4, spans=((2, 3), (9, 1)))
    store.handoffs.put(ID, HandoffRequest(items=(item,)))
    found = store.handoffs.get(ID)
    assert found is not None
    assert found.items[0].runs == ((2, 3), (9, 1))


def test_an_equal_put_changes_nothing_and_a_different_one_is_refused(store: Store) -> None:
    put_embedding(store, key_of(1))
    first = store.handoffs.put(ID, request_of(1, extra={"a": 1, "b": 2}))
    store.embeddings.remove([key_of(1)])  # the second put needs the index no more
    again = store.handoffs.put(ID, request_of(1, extra={"b": 2, "a": 1}))
    assert (first.created, again.created, again.handoff) == (True, False, first.handoff)
    for other in (request_of(1, extra={"a": 2}), request_of(2), request_of(1, mrope_position_delta=0)):
        with pytest.raises(HandoffConflict):
            store.handoffs.put(ID, other)
    assert store.handoffs.get(ID) == first.handoff
    assert store.handoffs.remove(ID)
    assert not store.handoffs.remove(ID)
    put_embedding(store, key_of(2))
    assert store.handoffs.put(ID, request_of(2)).created


def test_each_key_without_metadata_is_named_and_nothing_is_kept(store: Store) -> None:
    put_embedding(store, key_of(1))
    with pytest.raises(NotFound) as caught:
        store.handoffs.put(ID, request_of(1, 2, 3, 2))
    text = caught.value.message
    assert (text.count(key_of(2)), text.count(key_of(3)), text.count(key_of(1))) == (1, 1, 0)
    assert store.handoffs.get(ID) is None


def test_metadata_of_the_request_replaces_that_of_an_evicted_embedding(store: Store) -> None:
    known = put_embedding(store, key_of(1)).entry.metadata
    lost = entry_of(key_of(2)).metadata
    other = known.model_copy(update={"encoder": "a lie"})
    items = (
        Placement(key=key_of(1), offset=0, length=4, metadata=other),
        Placement(key=key_of(2), offset=4, length=4, metadata=lost),
    )
    found = store.handoffs.put(ID, HandoffRequest(items=items)).handoff
    assert [item.metadata for item in found.items] == [known, lost]
    bare = tuple(item.model_copy(update={"metadata": None}) for item in items)
    assert not store.handoffs.put(ID, HandoffRequest(items=bare)).created, (
        "metadata is no part of what is said"
    )


def test_metadata_of_the_request_must_be_valid(store: Store) -> None:
    odd = Metadata.model_validate(entry_of(key_of(2)).metadata.model_dump() | {"dtype": "int3"})
    item = Placement(key=key_of(2), offset=0, length=4, metadata=odd)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="int3"):
            store.handoffs.put(ID, HandoffRequest(items=(item,)))
        put_embedding(store, key_of(2))  # then it is not needed, and no better


def test_json_that_no_library_writes_is_the_callers_fault(store: Store) -> None:
    long = entry_of(key_of(2)).metadata.model_copy(update={"source_bytes": 1 << 70})
    item = Placement.model_construct(key=key_of(2), offset=0, length=4, metadata=long)
    for request in (
        request_of(1).model_copy(update={"prompt_tokens": 1 << 70}),
        HandoffRequest(items=(item,)),
    ):
        with pytest.raises(InvalidRequest, match="64-bit"):
            store.handoffs.put(ID, request)


def test_placeholders_that_are_not_as_many_as_rows_are_refused_and_not_kept(store: Store) -> None:
    put_embedding(store, key_of(1))
    wrong = Placement(key=key_of(1), offset=13, length=5)
    request = HandoffRequest(items=(*request_of(1).items, wrong))
    for _ in range(2):
        with pytest.raises(
            InvalidRequest, match=r"items\[1\]: 5 placeholders at 13, 4 rows: length may be 4 or 0"
        ):
            store.handoffs.put(ID, request)
        assert store.handoffs.get(ID) is None
    assert store.handoffs.put(ID, request_of(1)).created


def test_a_refused_put_leaves_nothing(store: Store) -> None:
    """Neither a valid put of the same id nor a waiting reader sees it."""
    put_embedding(store, key_of(1))

    def refused(name: str) -> bool:
        with pytest.raises(InvalidRequest):
            store.handoffs.put(name, request_of(1, length=5))
        return True

    with ThreadPoolExecutor(2) as pool:
        for name in (f"r{number}" for number in range(150)):
            bad, good = pool.submit(refused, name), pool.submit(store.handoffs.put, name, request_of(1))
            try:
                assert good.result(10).created, name
            finally:
                conflicted = isinstance(bad.exception(10), HandoffConflict)  # it came second
            assert conflicted or bad.result(10)
            assert store.handoffs.get(name) is not None, name


def test_a_refused_put_wakes_no_waiter(store: Store) -> None:
    put_embedding(store, key_of(1))
    store.notices.listen("w1", 0.05)
    assert store.handoffs.get(ID, "w1") is None
    with pytest.raises(InvalidRequest):
        store.handoffs.put(ID, request_of(1, length=5))
    assert store.notices.listen("w1", 0.2) == []
    store.handoffs.put(ID, request_of(1))
    (notice,) = listen_until(store, "w1", 1)
    assert notice.job_id == handoff_topic(ID)


def test_a_handoff_expires_and_a_put_renews_it(make_store: MakeStore) -> None:
    store = make_store(handoff_ttl=0.4)
    put_embedding(store, key_of(1))
    store.handoffs.put(ID, request_of(1))
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        assert not store.handoffs.put(ID, request_of(1)).created
        time.sleep(0.05)
    wait_until(lambda: store.handoffs.get(ID) is None)
    with pytest.raises(NotFound):  # a new one, so its keys have to be known again
        store.handoffs.put(ID, request_of(9))


def test_an_earlier_reader_is_notified(store: Store) -> None:
    put_embedding(store, key_of(1))
    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(store.notices.listen, "w1", 10.0)
        wait_until(lambda: _heard_of(store, listening.done))
        (notice,) = listening.result(5)
    assert (notice.job_id, notice.job_final) == (handoff_topic(ID), True)


def _heard_of(store: Store, done: object) -> bool:
    """Look, put and forget, until the listener that starts during it has heard of it."""
    assert callable(done)
    if done():
        return True
    assert store.handoffs.get(ID, "w1") is None
    store.handoffs.put(ID, request_of(1))
    store.handoffs.remove(ID)
    return bool(done())


def test_a_reader_that_found_it_is_not_notified(store: Store) -> None:
    put_embedding(store, key_of(1))
    store.notices.listen("w1", 0.05)
    store.handoffs.put(ID, request_of(1))
    assert store.handoffs.get(ID, "w1") is not None
    store.handoffs.put(ID, request_of(1))
    assert store.notices.listen("w1", 0.2) == []


def test_keys_on_the_server_end_and_are_small(server: redis.Redis, make_store: MakeStore) -> None:
    store = make_store(handoff_ttl=50)
    for number in range(MAX_WATCHERS + 9):
        assert store.handoffs.get(ID, f"w{number}") is None
    waiting = keys.handoff_waiting(ID)
    assert server.scard(waiting) == MAX_WATCHERS
    assert 0 < server.pttl(waiting) <= 15_000
    for number in range(8):
        put_embedding(store, key_of(number))
    store.handoffs.put(ID, request_of(*range(8)))
    assert not server.exists(waiting)
    assert 0 < server.pttl(keys.handoff(ID)) <= 50_000
    assert server.memory_usage(keys.handoff(ID)) <= 8 * 512


def test_an_id_that_looks_like_another_key_is_another_handoff(store: Store) -> None:
    put_embedding(store, key_of(1))
    for name in ("a", "a:b", "a_wait:b", "wait", "a:waiting", "A", "a."):
        assert store.handoffs.get(name, "w") is None
        assert store.handoffs.put(name, request_of(1, extra={"name": name})).created
    found = store.handoffs.get("a:b")
    assert found is not None
    assert found.extra == {"name": "a:b"}


async def test_an_event_loop_reads_the_same(store: Store) -> None:
    put_embedding(store, key_of(1))
    store.notices.listen("w1", 0.05)
    assert await store.async_handoffs.get(ID, "w1") is None
    put = store.handoffs.put(ID, request_of(1)).handoff
    assert await store.async_handoffs.get(ID) == put
    (notice,) = listen_until(store, "w1", 1)
    assert notice.job_id == handoff_topic(ID)
    await store.async_cache.close()


def test_two_processes_that_put_at_once_make_one(make_store: MakeStore) -> None:
    store = make_store()
    put_embedding(store, key_of(1))
    with ThreadPoolExecutor(8) as pool:
        puts = list(pool.map(lambda _: store.handoffs.put(ID, request_of(1)).created, range(32)))
    assert puts.count(True) == 1


def test_a_handoff_of_another_version_is_not_found(make_store: MakeStore, server: redis.Redis) -> None:
    store = make_store()
    server.rpush(keys.handoff(ID), '{"items":[{"key":"x","offset":0,"length":1}]}', "nonsense")
    server.expire(keys.handoff(ID), 60)
    assert store.handoffs.get(ID) is None


def test_a_put_replaces_one_of_another_version(make_store: MakeStore, server: redis.Redis) -> None:
    store = make_store()
    put_embedding(store, key_of(1))
    store.handoffs.put(ID, request_of(1))
    server.lset(keys.handoff(ID), 1, "nonsense")
    assert store.handoffs.get(ID) is None
    put = store.handoffs.put(ID, request_of(1))
    assert put.created
    assert store.handoffs.get(ID) == put.handoff
