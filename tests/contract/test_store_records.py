"""Cards, the URL memo and heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable

from epd.contracts.embedding import EncoderCard, ImageRules
from epd.contracts.media import Modality
from epd.store.open import Store
from epd.store.values import Heartbeat, SourceMemo
from tests.contract.store_values import key_of, wait_until

MakeStore = Callable[..., Store]


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
