"""Cards, the URL memo, heartbeats, and the places of segments."""

from __future__ import annotations

import time

import pytest
import redis

from epd.contracts.embedding import EncoderCard, ImageRules
from epd.contracts.media import Modality
from epd.store import keys
from epd.store.open import Store
from epd.store.records import SegmentPlace
from epd.store.values import Heartbeat, SourceMemo
from tests.contract.store_values import key_of, wait_until
from tests.store_kit import MakeStore


def _card(name: str, revision: str = "1") -> EncoderCard:
    return EncoderCard(
        name=name,
        family="dinov2",
        modalities=(Modality.IMAGE,),
        hidden=384,
        dtype="float32",
        weights_digest=key_of(5),
        preprocess_revision=revision,
        image=ImageRules(max_pixels=1000),
    )


def _beat(name: str, kind: str = "fetch") -> Heartbeat:
    return Heartbeat(
        name=name,
        kind=kind,
        host="h",
        pid=1,
        at=time.time(),
        encoders=("tiny",),
        counters={"fetch_items": 2.5},
    )


def test_a_card_stays_until_it_is_replaced(store: Store) -> None:
    assert store.cards.get([]) == []
    assert store.cards.get(["a"]) == [None]
    store.cards.announce(_card("a"))
    store.cards.announce(_card("b"))
    store.cards.announce(_card("a", revision="2"))
    assert store.cards.get(["b", "x", "a"]) == [_card("b"), None, _card("a", revision="2")]


def test_a_source_is_remembered_for_the_life_of_an_embedding(make_store: MakeStore) -> None:
    store = make_store(embedding_ttl=0.6)
    memo = SourceMemo(digest=key_of(1), etag='W/"a"', fetched_at=1.5, nbytes=10)
    assert store.sources.get("s") is None
    store.sources.put("s", memo)
    assert store.sources.get("s") == memo
    store.sources.put("s", memo.model_copy(update={"etag": None}))
    changed = store.sources.get("s")
    assert changed is None or changed.etag is None
    wait_until(lambda: store.sources.get("s") is None)


def test_the_audio_of_a_video_is_remembered_for_the_time_of_a_job(make_store: MakeStore) -> None:
    store = make_store(job_deadline=0.6)
    assert store.sources.has_audio("d") is None
    for present in (True, False):
        store.sources.note_audio("d", present)
        assert store.sources.has_audio("d") in (present, None)
    wait_until(lambda: store.sources.has_audio("d") is None)


def test_workers_live_while_they_beat(make_store: MakeStore) -> None:
    store = make_store(heartbeat_ttl=0.3)
    assert store.heartbeats.alive() == []
    dies, lives = _beat("b"), _beat("a", "encode")
    store.heartbeats.beat(dies)

    def only_one_lives() -> bool:
        store.heartbeats.beat(lives)
        return store.heartbeats.alive() == [lives]

    wait_until(only_one_lives)


def test_workers_are_listed_by_name_and_leave_at_once(store: Store) -> None:
    beats = [_beat("a"), _beat("b"), _beat("c")]
    for beat in reversed(beats):
        store.heartbeats.beat(beat)
    assert store.heartbeats.alive() == beats
    store.heartbeats.leave("b")
    store.heartbeats.leave("never there")
    assert store.heartbeats.alive() == [beats[0], beats[2]]


def place(number: int, start: int = 0) -> SegmentPlace:
    return SegmentPlace(parent=key_of(number), start=start, rows=1500, checksum=0xDEADBEEF)


def test_places_come_back_in_the_order_of_the_keys(store: Store) -> None:
    assert store.segments.find([]) == []
    assert store.segments.find([key_of(1)]) == [None]
    store.segments.note({key_of(1): place(10), key_of(2): place(11, 3000)})
    assert store.segments.find([key_of(2), key_of(3), key_of(1)]) == [place(11, 3000), None, place(10)]
    store.segments.note({})
    assert store.segments.count() == 2


def test_a_newer_place_replaces_an_older_one(store: Store) -> None:
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


def test_places_expire(make_store: MakeStore) -> None:
    store = make_store(embedding_ttl=0.3)
    store.segments.note({key_of(1): place(10)})
    wait_until(lambda: store.segments.count() == 0)
    assert store.segments.find([key_of(1)]) == [None]


def test_an_unreadable_place_is_unknown(make_store: MakeStore, server: redis.Redis) -> None:
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
