"""Every field of a key and every preprocessing option: a new value misses, the old value still hits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from epd import identity
from epd.config import ModelConfig
from epd.contracts.embedding import AudioRules, EncoderCard, Entry, ImageRules, Metadata, VideoRules
from epd.contracts.job import PartId
from epd.contracts.media import Item, ItemOptions, Modality, Source
from epd.lookup import Found, look_up
from epd.store.cache.entry import ref_of
from epd.store.open import Store
from epd.store.values import Completed

MODEL = ModelConfig(image="tower", video="tower", audio="tower")
CARD = EncoderCard(
    name="tower",
    family="qwen2_5_vl",
    modalities=tuple(Modality),
    hidden=8,
    dtype="float32",
    weights_digest="a" * 64,
    preprocess_revision="1",
    options=("min_pixels", "max_pixels", "fps", "min_frames", "max_frames"),
    image=ImageRules(min_pixels=3136, max_pixels=1_000_000),
    video=VideoRules(fps=2, min_frames=4, max_frames=768, frame_multiple=2, min_pixels=100, max_pixels=5000),
    audio=AudioRules(sample_rate=16_000),
)


@dataclass(frozen=True)
class Asked:
    """What makes a key: the bytes, what they are read as, the options, and the encoder's card."""

    digest: str = "d" * 64
    track: Modality = Modality.VIDEO
    options: ItemOptions = field(default_factory=ItemOptions)
    card: EncoderCard = CARD

    def found(self, store: Store) -> Found:
        item = Item(index=0, modality=self.track, source=Source(media_id=self.digest), options=self.options)
        cards: Mapping[Modality, EncoderCard] = dict.fromkeys(Modality, self.card)
        model = MODEL if self.track is not Modality.VIDEO else MODEL.model_copy(update={"audio": None})
        return look_up([(item, self.digest)], model=model, cards=cards, embeddings=store.embeddings)[0]

    def make(self, store: Store, filler: int) -> Entry:
        """An embedding of a key of its own, filled with its own value."""
        (wanted,) = self.found(store).missing
        metadata = Metadata(
            embedding_key=wanted.key,
            content_digest=self.digest,
            modality=self.track,
            encoder=self.card.name,
            dtype="float32",
            token_count=4,
            hidden=8,
        )
        entry = Entry(ref=ref_of(metadata), metadata=metadata)
        data = memoryview(bytes([filler]) * entry.ref.nbytes)
        store.embeddings.publish_file(entry.ref, data, {})
        store.flights.complete([Completed(entry, "0" * 32, PartId(0, self.track), {})])
        return entry


def _with_card(track: Modality, **change: object) -> tuple[Asked, Asked]:
    base = Asked(track=track)
    return base, replace(base, card=CARD.model_copy(update=change))


def _with_rule(kind: str, track: Modality, **change: object) -> tuple[Asked, Asked]:
    rules = getattr(CARD, kind).model_copy(update=change)
    return _with_card(track, **{kind: rules})


def _with_option(track: Modality, **change: object) -> tuple[Asked, Asked]:
    return Asked(track=track), Asked(track=track, options=ItemOptions.model_validate(change))


CHANGES = {
    "content": (Asked(), Asked(digest="e" * 64)),
    "last digit of the content": (Asked(), Asked(digest="d" * 63 + "e")),
    "image or video": (Asked(), Asked(track=Modality.IMAGE)),
    "image or audio": (Asked(track=Modality.IMAGE), Asked(track=Modality.AUDIO)),
    **{
        f"{track} {name}": _with_card(track, **{name: value})
        for track in Modality
        for name, value in {
            "name": "other",
            "family": "dinov2",
            "weights_digest": "b" * 64,
            "dtype": "bfloat16",
            "preprocess_revision": "2",
        }.items()
    },
    **{
        f"video rule {field}": _with_rule("video", Modality.VIDEO, **{field: value})
        for field, value in {
            "fps": 4.0,
            "min_frames": 5,
            "max_frames": 5,
            "frame_multiple": 4,
            "min_pixels": 101,
            "max_pixels": 5001,
        }.items()
    },
    **{
        f"image rule {field}": _with_rule("image", Modality.IMAGE, **{field: value})
        for field, value in {"min_pixels": 3137, "max_pixels": None}.items()
    },
    "audio rule sample_rate": _with_rule("audio", Modality.AUDIO, sample_rate=24_000),
    **{
        f"{track} option {field}": _with_option(track, **{field: value})
        for track, options in {
            Modality.IMAGE: {"min_pixels": 1, "max_pixels": 12_544},
            Modality.VIDEO: {
                "min_pixels": 1,
                "max_pixels": 4999,
                "fps": 1.0,
                "min_frames": 1,
                "max_frames": 767,
            },
        }.items()
        for field, value in options.items()
    },
}


def test_every_field_of_the_key_is_covered_here() -> None:
    rules = {"image": CARD.image, "video": CARD.video, "audio": CARD.audio}
    named = {f"{kind} rule {field}" for kind, rule in rules.items() if rule for field in rule.model_dump()}
    options = {
        f"{track} option {name}" for track in Modality for name in identity.applicable_options(CARD, track)
    }
    without_effect = {"device", "parameters", "hidden", "modalities", "options"}
    fields = set(EncoderCard.model_fields) - without_effect - set(rules)
    named |= {f"{track} {field}" for track in Modality for field in fields} | options
    assert named <= set(CHANGES)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_a_miss_and_the_change_back_a_hit(store: Store, change: str) -> None:
    before, after = CHANGES[change]
    first = before.make(store, 1)
    assert after.found(store).main is not None
    second = after.make(store, 2)
    assert first.ref.key != second.ref.key
    for asked, entry, filler in ((before, first, 1), (after, second, 2)):
        found = asked.found(store)
        assert found.main is None
        (record,) = found.finished.values()
        assert record.ref == entry.ref
        assert store.embeddings.path(entry.ref.key).read_bytes().endswith(bytes([filler]) * entry.ref.nbytes)


@pytest.mark.parametrize("name", ["KEY_VERSION", "DECODE_REVISION"])
def test_a_new_revision_of_key_or_decoding_is_a_miss(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Asked().make(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(identity, name, "next")
        assert Asked().found(store).main is not None
    assert Asked().found(store).main is None
