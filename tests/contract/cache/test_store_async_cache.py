"""What the API reads and writes on its loop: the cards, memos, entries and jobs of the blocking calls."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import redis

from epd.contracts.embedding import EncoderCard, Entry, ImageRules
from epd.contracts.job import PartId, PartRecord
from epd.contracts.media import Modality
from epd.settings import Settings
from epd.store import keys
from epd.store.cache.async_cache import AsyncCache, CachedPart, LookedUp
from epd.store.loop_connection import LoopConnection
from epd.store.open import Store, open_store
from epd.store.scripts import Command
from epd.store.values import SourceMemo
from tests.contract.store_values import IMAGE, job_record, key_of, put_embedding
from tests.store_kit import MakeStore

KEY, OTHER = key_of(1), key_of(2)
CARD = EncoderCard(
    name="tiny", family="tiny", modalities=(Modality.IMAGE,), hidden=8, dtype="float32",
    weights_digest="a" * 64, preprocess_revision="1", image=ImageRules(),
)  # fmt: skip


def memo(digest: str) -> SourceMemo:
    return SourceMemo(digest=digest, fetched_at=time.time(), nbytes=3)


def cached(entry: Entry) -> CachedPart:
    record = PartRecord.done(entry, cached=True)
    return CachedPart(record, record.to_json())


def keys_of(*keys: str) -> Callable[[Sequence[SourceMemo | None]], Sequence[str]]:
    """These keys, whatever the memos are."""
    return lambda _: keys


def digests_of(memos: Sequence[SourceMemo | None]) -> list[str]:
    """The digests of memos, as if they were embedding keys."""
    return [memo.digest for memo in memos if memo is not None]


async def entries_of(cache: AsyncCache, *keys: str) -> list[Entry | None]:
    looked = await cache.lookup([], keys_of(*keys))
    found = [looked.parts.get(key) for key in keys]
    return [
        None if part is None else Entry(ref=part.record.ref, metadata=part.record.metadata) for part in found
    ]


@pytest.fixture
async def cache(store: Store) -> AsyncIterator[AsyncCache]:
    yield store.async_cache
    await store.async_cache.close()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands in each round trip of the loop's connection."""
    counted: list[int] = []
    pipe = LoopConnection.pipe

    async def counting(self: LoopConnection, commands: Sequence[Command]) -> list[Any]:
        counted.append(len(commands))
        return await pipe(self, commands)

    monkeypatch.setattr(LoopConnection, "pipe", counting)
    return counted


async def test_cards_come_in_their_order(store: Store, cache: AsyncCache) -> None:
    store.cards.announce(CARD)
    assert await cache.cards(["none", "tiny"]) == [None, CARD]


async def test_cards_are_cached_for_a_while(
    store: Store, cache: AsyncCache, trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await cache.cards(["tiny"]) == [None]
    store.cards.announce(CARD)
    (first,) = await cache.cards(["tiny"])
    assert first == CARD
    changed = CARD.model_copy(update={"weights_digest": "b" * 64})
    store.cards.announce(changed)
    assert (await cache.cards(["tiny"]))[0] is first
    assert len(trips) == 2, "a missing card is asked for again, a known one is not"
    monkeypatch.setattr("epd.store.cache.async_cache.CARD_SECONDS", 0)
    assert await cache.cards(["tiny"]) == [changed]
    (second,) = await cache.cards(["tiny"])
    assert (await cache.cards(["tiny"]))[0] is second, "an equal card stays the same object"


async def test_memos_come_in_their_order_and_follow_what_is_changed(store: Store, cache: AsyncCache) -> None:
    first, second = memo("1" * 64), memo("2" * 64)
    store.sources.put("s1", first)
    store.sources.put("s2", second)
    looked = await cache.lookup(["s2", "s0", "s1"], digests_of)
    assert looked.memos == [second, None, first]
    store.sources.put("s1", second)
    assert (await cache.lookup(["s1"], digests_of)).memos == [second]


async def test_memos_and_the_entries_that_follow_take_one_round_trip_once_they_are_known(
    store: Store, cache: AsyncCache, trips: list[int]
) -> None:
    entries = {key: put_embedding(store, key).entry for key in (KEY, OTHER)}
    store.sources.put("s", memo(KEY))
    for expected in ([1, 1], [2], [2]):
        trips.clear()
        looked = await cache.lookup(["s"], digests_of)
        assert trips == expected
        assert list(looked.parts) == [KEY]
        assert looked.parts[KEY].record.ref == entries[KEY].ref
    store.sources.put("s", memo(OTHER))
    trips.clear()
    looked = await cache.lookup(["s"], digests_of)
    assert trips == [2, 1]
    assert looked.parts[OTHER].record.ref == entries[OTHER].ref
    trips.clear()
    assert await cache.lookup([], digests_of) == LookedUp()
    assert trips == []


async def test_entries_are_those_of_the_blocking_look_up(store: Store, cache: AsyncCache) -> None:
    entry = put_embedding(store, KEY).entry
    for _ in range(2):
        assert await entries_of(cache, OTHER, KEY, KEY) == [None, entry, entry]
    store.embeddings.remove([KEY])
    assert await entries_of(cache, KEY) == [None]


@pytest.mark.parametrize("damage", ["cut", "gone", "rewritten", "another's"])
async def test_a_file_that_changed_is_checked_again(store: Store, cache: AsyncCache, damage: str) -> None:
    entry, other = put_embedding(store, KEY).entry, put_embedding(store, OTHER).entry
    assert await entries_of(cache, KEY) == [entry]
    path = store.embeddings.path(KEY)
    whole = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(
            {
                "cut": whole[:-1],
                "rewritten": b"\xff" * len(whole),
                "another's": store.embeddings.path(other.ref.key).read_bytes(),
            }[damage]
        )
    assert await entries_of(cache, KEY, OTHER) == [None, other]
    path.unlink(missing_ok=True)
    put_embedding(store, KEY)
    assert await entries_of(cache, KEY) == [entry]


async def test_a_cached_answer_counts_as_a_use(make_store: MakeStore) -> None:
    size = 4 * 8 * 4
    store = make_store(embedding_bytes=3 * size)
    for number in (1, 2, 3):
        put_embedding(store, key_of(number))
        time.sleep(0.002)  # the index counts in milliseconds
    assert await entries_of(store.async_cache, key_of(1)) != [None]
    time.sleep(0.002)
    put_embedding(store, key_of(4))
    there = store.embeddings.lookup([key_of(number) for number in (1, 2, 3, 4)])
    assert [entry is not None for entry in there] == [True, False, True, True]
    await store.async_cache.close()


async def test_the_job_equals_that_of_the_blocking_call(store: Store, cache: AsyncCache) -> None:
    entry = put_embedding(store, KEY).entry
    other = put_embedding(store, OTHER, tokens=2).entry
    counted = store.embeddings.stats().totals.hits_l1
    record = job_record(uuid.uuid4().hex, items=2)
    parts = {IMAGE: entry, PartId(1, Modality.IMAGE): other}
    for _ in range(2):  # a second time, after a lost answer, changes nothing
        await cache.create(record, [(part, cached(one)) for part, one in parts.items()])
    view = store.jobs.view(record.job_id)
    assert view is not None
    assert view.record == record
    expected = {str(part): PartRecord.done(one, cached=True) for part, one in parts.items()}
    assert view.parts == expected
    assert store.jobs.open_parts([record.job_id]) == [0]
    assert store.embeddings.stats().totals.hits_l1 >= counted + 2


def test_cached_parts_of_any_job_are_counted(store: Store) -> None:
    done = PartRecord.done(put_embedding(store, KEY).entry, cached=True)
    parts = {IMAGE: done, PartId(1, Modality.IMAGE): PartRecord()}
    counted = store.embeddings.stats().totals.hits_l1
    store.jobs.create(job_record(uuid.uuid4().hex, items=2), parts, hits=1)
    assert store.embeddings.stats().totals.hits_l1 == counted + 1


async def test_a_job_ends_as_finished_ones_do(store_settings: Settings, server: redis.Redis) -> None:
    store = open_store(store_settings)
    record = job_record(uuid.uuid4().hex)
    await store.async_cache.create(record, [(IMAGE, cached(put_embedding(store, KEY).entry))])
    left = server.ttl(keys.job(record.job_id))
    assert 0 < left <= store_settings.job_ttl
    await store.async_cache.close()
    store.close()


async def test_entries_in_l2_alone_are_left_to_the_blocking_look_up(
    make_store: MakeStore, store_settings: Settings
) -> None:
    size = 4 * 8 * 4
    second = store_settings.embedding_dir.with_name("second")
    store = make_store(l2_dir=second, embedding_bytes=2 * size, l2_bytes=1 << 20)
    entries = {number: put_embedding(store, key_of(number)).entry for number in (1, 2)}
    store.embeddings.move(1)
    for number in (3, 4):
        put_embedding(store, key_of(number))
    store.embeddings.move(1)
    assert await entries_of(store.async_cache, key_of(1)) in ([None], [entries[1]])
    assert store.embeddings.lookup([key_of(1)]) == [entries[1]]
    await store.async_cache.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("seen", [False, True])
async def test_a_pipe_instead_of_a_file_is_a_miss_and_blocks_nobody(
    store: Store, cache: AsyncCache, seen: bool
) -> None:
    entry = put_embedding(store, KEY).entry
    if seen:
        assert list(await entries_of(cache, KEY)) == [entry]
    path = store.embeddings.path(KEY)
    path.unlink()
    os.mkfifo(path)
    assert list(await entries_of(cache, KEY)) == [None]
