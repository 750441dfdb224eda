"""Which embeddings an item needs and what the cache answers, over a store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from epd.config import ModelConfig
from epd.contracts.embedding import (
    AudioRules,
    AudioTrackInfo,
    EmbeddingRef,
    EncoderCard,
    Entry,
    ImageRules,
    Metadata,
    VideoRules,
)
from epd.contracts.errors import EncoderNotReady, UnknownModel
from epd.contracts.job import PartId, PartRecord, State
from epd.contracts.media import Item, Modality, Source
from epd.contracts.messages import Wanted
from epd.lookup import Found, cards_of, digest_of_memo, look_up, needs_of, parts_of_video, tracks_of
from epd.settings import Settings
from epd.store.cache.entry import ref_of
from epd.store.open import Store
from epd.store.values import Completed, SourceMemo
from tests.store_kit import Stores

DIGEST = "d" * 64
MODEL = ModelConfig(image="eye", video="eye", audio="ear")
MAIN, AUDIO = PartId(0, Modality.VIDEO), PartId(0, Modality.AUDIO)


def card(name: str, *modalities: Modality) -> EncoderCard:
    return EncoderCard(
        name=name,
        family=name,
        modalities=modalities,
        hidden=4,
        dtype="float32",
        weights_digest="a" * 64,
        preprocess_revision="1",
        image=ImageRules(),
        video=VideoRules(fps=2, min_frames=2, max_frames=8),
        audio=AudioRules(sample_rate=16000),
    )


@pytest.fixture
def store(tmp_path: Path, stores: Stores) -> Store:
    store = stores.open(Settings(blob_dir=tmp_path / "b", embedding_dir=tmp_path / "e"))
    store.cards.announce(card("eye", Modality.IMAGE, Modality.VIDEO))
    store.cards.announce(card("ear", Modality.AUDIO))
    return store


def video(mode: str = "auto") -> Item:
    return Item(
        index=0, modality=Modality.VIDEO, source=Source(media_id=DIGEST), options={"audio_track": mode}
    )


def find(store: Store, item: Item, model: ModelConfig = MODEL) -> Found:
    cards = cards_of(model, store.cards)
    (found,) = look_up([(item, DIGEST)], model=model, cards=cards, embeddings=store.embeddings)
    return found


def keep(store: Store, track: Modality, audio: AudioTrackInfo | None = None) -> None:
    needs = needs_of(video(), DIGEST, model=MODEL, cards=cards_of(MODEL, store.cards))
    wanted = needs.main if track is Modality.VIDEO else needs.audio
    assert wanted is not None
    ref = EmbeddingRef(key=wanted.key, shape=(2, 4), dtype="float32", nbytes=32)
    metadata = Metadata(
        embedding_key=wanted.key,
        content_digest=DIGEST,
        modality=track,
        encoder=wanted.encoder,
        dtype="float32",
        token_count=2,
        hidden=4,
        audio=audio,
    )
    store.embeddings.publish_file(ref, memoryview(bytes(32)), {})
    store.flights.complete([Completed(Entry(ref=ref, metadata=metadata), "0" * 32, MAIN, {})])


def test_nothing_is_there(store: Store) -> None:
    found = find(store, video())
    assert not found.complete
    assert found.finished == {}
    assert [wanted.track for wanted in found.missing] == [Modality.VIDEO, Modality.AUDIO]
    assert found.certain_parts == (MAIN,)


def test_frames_there_and_audio_missing(store: Store) -> None:
    keep(store, Modality.VIDEO, AudioTrackInfo(present=True))
    found = find(store, video())
    assert [wanted.track for wanted in found.missing] == [Modality.AUDIO]
    assert list(found.finished) == [MAIN]
    assert found.certain_parts == (MAIN, AUDIO)
    assert find(store, video("none")).complete


def test_audio_there_and_frames_missing(store: Store) -> None:
    keep(store, Modality.AUDIO)
    found = find(store, video())
    assert [wanted.track for wanted in found.missing] == [Modality.VIDEO]
    assert list(found.finished) == [AUDIO]
    assert found.certain_parts == (MAIN, AUDIO)


def test_both_there(store: Store) -> None:
    keep(store, Modality.VIDEO, AudioTrackInfo(present=True))
    keep(store, Modality.AUDIO)
    found = find(store, video("require"))
    assert found.complete
    assert {part: record.state for part, record in found.finished.items()} == {
        MAIN: State.DONE,
        AUDIO: State.DONE,
    }
    assert all(record.cached for record in found.finished.values())


def test_a_silent_video(store: Store) -> None:
    keep(store, Modality.VIDEO, AudioTrackInfo(present=False))
    assert find(store, video()).finished[MAIN].state is State.DONE
    required = find(store, video("require"))
    assert required.complete
    error = required.finished[MAIN].error
    assert error is not None
    assert error.code == "no_audio_track"


@pytest.mark.parametrize("mode", ["auto", "require"])
@pytest.mark.parametrize("has_audio", [True, False], ids=["sound", "silent"])
def test_the_parts_of_a_video(store: Store, mode: str, has_audio: bool) -> None:
    found = find(store, video(mode))
    assert found.undecided
    assert not found.has_audio_part
    heard = parts_of_video(found, has_audio=has_audio)
    assert not heard.undecided
    assert heard.has_audio_part is has_audio
    if has_audio:
        assert heard.missing == found.missing
    elif mode == "auto":
        assert heard.missing == (found.main,)
        assert heard.finished == {}
    else:
        assert heard.complete
        assert list(heard.finished) == [MAIN]


def test_other_items_are_never_undecided(store: Store) -> None:
    image = Item(index=0, modality=Modality.IMAGE, source=Source(media_id=DIGEST))
    for item in (image, video("none")):
        assert not find(store, item).undecided
        assert find(store, item).certain_parts == (PartId(0, item.modality),)


def test_models_without_an_encoder(store: Store) -> None:
    deaf = ModelConfig(video="eye")
    assert tracks_of(video(), deaf) == (Modality.VIDEO,)
    with pytest.raises(UnknownModel, match="require"):
        tracks_of(video("require"), deaf)
    with pytest.raises(UnknownModel, match="video"):
        tracks_of(video(), ModelConfig(audio="ear"))
    with pytest.raises(EncoderNotReady, match="late"):
        find(store, video(), ModelConfig(video="late"))


def test_digests_known_without_a_download() -> None:
    now = time.time()
    memo = SourceMemo(digest=DIGEST, fetched_at=now, nbytes=1)
    assert digest_of_memo(None, url_ttl=10, now=now) is None
    assert digest_of_memo(memo, url_ttl=0, now=now) is None
    assert digest_of_memo(memo, url_ttl=10, now=now + 9) == DIGEST
    assert digest_of_memo(memo, url_ttl=10, now=now + 11) is None


@pytest.mark.parametrize(("url", "saved"), [("http://a.test/v.mp4", 777), (None, 0)])
def test_a_cached_url_saves_its_body(url: str | None, saved: int) -> None:
    source = Source(url=url) if url else Source(media_id=DIGEST)
    item = Item(index=0, modality=Modality.IMAGE, source=source)
    metadata = Metadata(
        embedding_key="a" * 64,
        content_digest=DIGEST,
        modality=Modality.IMAGE,
        encoder="eye",
        dtype="float32",
        token_count=1,
        hidden=1,
        source_bytes=777,
    )
    record = PartRecord.done(Entry(ref=ref_of(metadata), metadata=metadata), cached=True)
    whole = Found(item, DIGEST, {PartId(0, Modality.IMAGE): record}, None, None)
    assert whole.saved_bytes == saved
    wanted = Wanted(key="b" * 64, track=Modality.AUDIO, encoder="ear", encoder_identity="x")
    assert Found(item, DIGEST, whole.finished, None, wanted).saved_bytes == 0
