"""What an answer from the cache takes of a store: the same facts, entries and jobs as the blocking calls."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator

import pytest
import redis

from epd.contracts.card import EncoderCard, ImageRules
from epd.contracts.job import PartId, PartRecord
from epd.contracts.media import Modality
from epd.settings import Settings
from epd.store import keys
from epd.store.base import Store
from epd.store.hits import Guess, Hits
from epd.store.open import open_store
from epd.store.values import SourceMemo
from tests.contract.conftest import MakeStore
from tests.contract.store_values import IMAGE, job_record, key_of, put_embedding

KEY, OTHER = key_of(1), key_of(2)
CARD = EncoderCard(
    name="tiny", family="tiny", modalities=(Modality.IMAGE,), hidden=8, dtype="float32",
    weights_digest="a" * 64, preprocess_revision="1", image=ImageRules(),
)  # fmt: skip


def memo(digest: str) -> SourceMemo:
    return SourceMemo(digest=digest, fetched_at=time.time(), nbytes=3)


@pytest.fixture
async def hits(store: Store) -> AsyncIterator[Hits]:
    assert store.hits is not None
    yield store.hits
    await store.hits.close()


async def test_facts_come_in_their_order(store: Store, hits: Hits) -> None:
    store.cards.announce(CARD)
    first, second = memo("1" * 64), memo("2" * 64)
    store.sources.put("s1", first)
    store.sources.put("s2", second)
    facts = await hits.facts(["none", "tiny"], ["s2", "s0", "s1"])
    assert list(facts.cards) == [None, CARD]
    assert list(facts.memos) == [second, None, first]
    assert list((await hits.facts(["tiny"], [])).memos) == []


async def test_facts_follow_what_is_changed(store: Store, hits: Hits) -> None:
    for digest in ("1" * 64, "2" * 64):
        changed = CARD.model_copy(update={"weights_digest": digest})
        store.cards.announce(changed)
        store.sources.put("s", memo(digest))
        facts = await hits.facts(["tiny"], ["s"])
        assert facts.cards[0] == changed
        assert facts.memos[0] is not None
        assert facts.memos[0].digest == digest


async def test_entries_are_those_of_the_blocking_look_up(store: Store, hits: Hits) -> None:
    entry = put_embedding(store, KEY).entry
    for _ in range(2):
        assert await hits.lookup([OTHER, KEY, KEY]) == [None, entry, entry]
    store.embeddings.remove([KEY])
    assert await hits.lookup([KEY]) == [None]


@pytest.mark.parametrize("damage", ["cut", "gone", "rewritten", "another's"])
async def test_a_file_that_changed_is_looked_at_again(store: Store, hits: Hits, damage: str) -> None:
    entry, other = put_embedding(store, KEY).entry, put_embedding(store, OTHER).entry
    assert await hits.lookup([KEY]) == [entry]
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
    assert await hits.lookup([KEY, OTHER]) == [None, other]
    path.unlink(missing_ok=True)
    put_embedding(store, KEY)
    assert await hits.lookup([KEY]) == [entry]


async def test_a_last_use_is_a_use(make_store: MakeStore) -> None:
    size = 4 * 8 * 4
    store = make_store(embedding_bytes=3 * size)
    assert store.hits is not None
    for number in (1, 2, 3):
        put_embedding(store, key_of(number))
        time.sleep(0.002)  # the index counts in milliseconds
    assert await store.hits.lookup([key_of(1)]) != [None]
    time.sleep(0.002)
    put_embedding(store, key_of(4))
    there = store.embeddings.lookup([key_of(number) for number in (1, 2, 3, 4)])
    assert [entry is not None for entry in there] == [True, False, True, True]
    await store.hits.close()


async def test_a_job_is_the_one_that_would_have_been_written(store: Store, hits: Hits) -> None:
    entry = put_embedding(store, KEY).entry
    other = put_embedding(store, OTHER, tokens=2).entry
    counted = store.embeddings.stats().totals.hits_l1
    record = job_record(uuid.uuid4().hex, items=2)
    parts = {IMAGE: entry, PartId(1, Modality.IMAGE): other}
    for _ in range(2):  # a second time, after a lost answer, changes nothing
        await hits.create(record, parts)
    view = store.jobs.view(record.job_id)
    assert view is not None
    assert view.record == record
    expected = {str(part): PartRecord.done(one, cached=True) for part, one in parts.items()}
    assert view.parts == expected
    assert store.jobs.open_parts([record.job_id]) == [0]
    assert store.embeddings.stats().totals.hits_l1 >= counted + 2


async def guess_of(store: Store, hits: Hits) -> Guess:
    """A job of one picture, whose card, memo and entry all were read."""
    entry = put_embedding(store, KEY).entry
    store.cards.announce(CARD)
    store.sources.put("s", memo("1" * 64))
    facts = await hits.facts(["tiny"], ["s"])
    assert await hits.lookup([KEY]) == [entry]
    return Guess(["tiny"], ["s"], facts, job_record(uuid.uuid4().hex), {IMAGE: entry})


async def test_what_was_read_is_recalled(store: Store, hits: Hits) -> None:
    assert hits.recalled(["tiny"], ["s"]) is None
    assert hits.recalled_entries([KEY]) == [None]
    guess = await guess_of(store, hits)
    assert hits.recalled(["tiny"], ["s"]) == guess.facts
    assert hits.recalled(["tiny", "none"], ["s"]) is None
    assert hits.recalled(["tiny"], ["s", "s0"]) is None
    assert hits.recalled_entries([OTHER, KEY]) == [None, guess.done[IMAGE]]
    store.embeddings.remove([KEY])
    assert await hits.lookup([KEY]) == [None]
    assert hits.recalled_entries([KEY]) == [None]


async def test_a_right_guess_is_a_job_and_a_use(store: Store, hits: Hits) -> None:
    guess = await guess_of(store, hits)
    counted = store.embeddings.stats().totals.hits_l1
    assert await hits.confirm(guess)
    view = store.jobs.view(guess.record.job_id)
    assert view is not None
    assert view.record == guess.record
    assert view.parts == {str(IMAGE): PartRecord.done(guess.done[IMAGE], cached=True)}
    assert store.jobs.open_parts([guess.record.job_id]) == [0]
    assert store.embeddings.stats().totals.hits_l1 == counted + 1


@pytest.mark.parametrize("change", ["card", "memo", "entry gone", "entry new", "file cut", "file gone"])
async def test_a_wrong_guess_leaves_no_job(store: Store, hits: Hits, change: str) -> None:
    guess = await guess_of(store, hits)
    path = store.embeddings.path(KEY)
    match change:
        case "card":
            store.cards.announce(CARD.model_copy(update={"weights_digest": "b" * 64}))
        case "memo":
            store.sources.put("s", memo("2" * 64))
        case "entry gone":
            store.embeddings.remove([KEY])
        case "entry new":
            store.embeddings.remove([KEY])
            put_embedding(store, KEY, tokens=2)
        case "file cut":
            os.truncate(path, path.stat().st_size - 1)
        case "file gone":
            path.unlink()
    counted = store.embeddings.stats().totals.hits_l1
    assert not await hits.confirm(guess)
    assert store.jobs.view(guess.record.job_id) is None
    assert store.embeddings.stats().totals.hits_l1 == counted
    found = await hits.lookup([KEY])
    assert found != [guess.done[IMAGE]] or change in ("card", "memo")


async def test_a_job_ends_as_finished_ones_do(store_settings: Settings, server: redis.Redis) -> None:
    store = open_store(store_settings)
    assert store.hits is not None
    record = job_record(uuid.uuid4().hex)
    await store.hits.create(record, {IMAGE: put_embedding(store, KEY).entry})
    left = server.ttl(keys.job(record.job_id))
    assert 0 < left <= store_settings.job_ttl
    await store.hits.close()
    store.close()


async def test_what_lies_in_the_second_tier_alone_is_left_to_the_blocking_look_up(
    make_store: MakeStore, store_settings: Settings
) -> None:
    size = 4 * 8 * 4
    second = store_settings.embedding_dir.with_name("second")
    store = make_store(l2_dir=second, embedding_bytes=2 * size, l2_bytes=1 << 20)
    assert store.hits is not None
    entries = {number: put_embedding(store, key_of(number)).entry for number in (1, 2)}
    store.embeddings.move(1)
    for number in (3, 4):
        put_embedding(store, key_of(number))
    store.embeddings.move(1)
    assert await store.hits.lookup([key_of(1)]) in ([None], [entries[1]])
    assert store.embeddings.lookup([key_of(1)]) == [entries[1]]
    await store.hits.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("seen", [False, True])
async def test_a_pipe_instead_of_a_file_is_not_at_hand_and_holds_nobody_up(
    store: Store, hits: Hits, seen: bool
) -> None:
    entry = put_embedding(store, KEY).entry
    if seen:
        assert list(await hits.lookup([KEY])) == [entry]
    path = store.embeddings.path(KEY)
    path.unlink()
    os.mkfifo(path)
    assert list(await hits.lookup([KEY])) == [None]
