"""Which embeddings an item needs, given its digest, and which of them are cached.

The API looks them up before it publishes anything; the fetch worker does it again when it knows a digest.
Both must get the same result, so the rules are here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from epd.config import ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import EncoderNotReady, NoAudioTrack, UnknownModel
from epd.contracts.job import PartId, PartRecord
from epd.contracts.media import AudioTrackMode, Item, Modality
from epd.contracts.messages import Wanted
from epd.identity import embedding_key, encoder_identity, source_key
from epd.store.cache.embeddings import Embeddings
from epd.store.records import Cards, Sources
from epd.store.values import SourceMemo

_TRACKS = tuple(Modality)  # iterating over an enum costs more than the work on its members


@dataclass(frozen=True, slots=True)
class Needs:
    """The embeddings that one item needs. ``audio`` is that of a video's audio track, if it has one."""

    main: Wanted
    audio: Wanted | None = None

    def key_list(self) -> list[str]:
        """The keys to look up, the main key first."""
        return [self.main.key] if self.audio is None else [self.main.key, self.audio.key]


@dataclass(frozen=True, slots=True)
class Found:
    """The result for one item.

    ``finished`` has the parts that are final at once: cached, or failed by what is known of the file.
    ``main`` and ``audio`` are the embeddings still to be made, or None. ``has_audio`` says whether a video's
    file has an audio track; while it is None, ``audio`` may turn out not to be needed.
    """

    item: Item
    digest: str
    finished: Mapping[PartId, PartRecord]
    main: Wanted | None
    audio: Wanted | None
    has_audio: bool | None = None

    @property
    def main_part(self) -> PartId:
        """The part of the item's own media type."""
        return PartId(self.item.index, self.item.modality)

    @property
    def audio_part(self) -> PartId:
        """The part of a video's audio track."""
        return PartId(self.item.index, Modality.AUDIO)

    @property
    def undecided(self) -> bool:
        """Whether the parts of the item depend on an audio track that was not looked for yet."""
        return self.item.modality is Modality.VIDEO and self.audio is not None and self.has_audio is None

    @property
    def has_audio_part(self) -> bool:
        """Whether a video is known to have a second part.

        That part is added to the job before the main part is finished, or the job would be final too early.
        """
        wanted = self.audio is not None or self.audio_part in self.finished
        return self.item.modality is Modality.VIDEO and bool(self.has_audio) and wanted

    @property
    def complete(self) -> bool:
        """Whether nothing is left to make."""
        return self.main is None and self.audio is None

    @property
    def saved_bytes(self) -> int:
        """Bytes of a URL that need no download, as far as known; 0 for uploads and with parts to make."""
        if self.item.source.url is None or not self.complete:
            return 0
        metadata = (record.metadata for record in self.finished.values() if record.metadata is not None)
        return max((each.source_bytes or 0 for each in metadata), default=0)

    @property
    def missing(self) -> tuple[Wanted, ...]:
        """The embeddings left to make, the main one first."""
        return tuple(wanted for wanted in (self.main, self.audio) if wanted is not None)

    @property
    def certain_parts(self) -> tuple[PartId, ...]:
        """The parts of the item that are known to exist, the main part first."""
        return (self.main_part, self.audio_part) if self.has_audio_part else (self.main_part,)


def parts_of_video(found: Found, *, has_audio: bool) -> Found:
    """The result for a video once it is known whether its file has an audio track. Makes no call.

    With audio every wanted part exists. Without it the main part is the only one, and it fails where the item
    requires audio: nothing is left to make for such an item.
    """
    if has_audio:
        return replace(found, has_audio=True)
    finished = {part: record for part, record in found.finished.items() if part != found.audio_part}
    if found.item.options.audio_track is not AudioTrackMode.REQUIRE:
        return replace(found, has_audio=False, finished=finished, audio=None)
    finished[found.main_part] = PartRecord.failed(no_audio_track())
    return replace(found, has_audio=False, finished=finished, main=None, audio=None)


def no_audio_track() -> NoAudioTrack:
    """The error of a part that requires the audio track of a video without one."""
    return NoAudioTrack("the video has no audio track")


def tracks_of(item: Item, model: ModelConfig) -> tuple[Modality, ...]:
    """The tracks of an item that need an encoder: its own, and the audio of a video where it is wanted.

    Raises:
        UnknownModel: the model has no encoder for the item's type, or none for a required audio track.
    """
    own = item.modality
    if model.encoder_for(own) is None:
        raise UnknownModel(f"the model has no encoder for {own}")
    mode = item.options.audio_track
    if own is not Modality.VIDEO or mode is AudioTrackMode.NONE:
        return (own,)
    if model.audio is None and mode is AudioTrackMode.REQUIRE:
        raise UnknownModel("the model has no encoder for audio, which audio_track=require asks for")
    return (own,) if model.audio is None else (own, Modality.AUDIO)


def encoders_of(model: ModelConfig) -> dict[Modality, str]:
    """The names of a model's encoders by track."""
    return {track: name for track in _TRACKS if (name := model.encoder_for(track)) is not None}


def cards_of(model: ModelConfig, cards: Cards) -> dict[Modality, EncoderCard]:
    """The cards of a model's encoders by track, read in one call; encoders without a card are left out."""
    names = encoders_of(model)
    return by_track(names, cards.get(list(names.values())))


def by_track(
    names: Mapping[Modality, str], found: Sequence[EncoderCard | None]
) -> dict[Modality, EncoderCard]:
    """The cards that were found, by track; ``found`` is in the order of ``names``."""
    return {track: card for track, card in zip(names, found, strict=True) if card is not None}


def needs_of(item: Item, digest: str, *, model: ModelConfig, cards: Mapping[Modality, EncoderCard]) -> Needs:
    """The embeddings that an item with this digest needs. Makes no call.

    Raises:
        UnknownModel: as ``tracks_of``.
        EncoderNotReady: an encoder has not been announced yet.
    """
    wanted = [_wanted(item, digest, track, model, cards) for track in tracks_of(item, model)]
    return Needs(*wanted)


def look_up(
    items: Sequence[tuple[Item, str]],
    *,
    model: ModelConfig,
    cards: Mapping[Modality, EncoderCard],
    embeddings: Embeddings,
) -> list[Found]:
    """What is final and what is missing for each of these items and digests, in order, in one round trip.

    Raises:
        UnknownModel, EncoderNotReady: as ``needs_of``.
        StoreUnavailable: the store does not answer.
    """
    needs = [needs_of(item, digest, model=model, cards=cards) for item, digest in items]
    keys = list(dict.fromkeys(key for need in needs for key in need.key_list()))
    entries = embeddings.lookup(keys, counted=True) if keys else []
    cached = {
        key: PartRecord.done(entry, cached=True)
        for key, entry in zip(keys, entries, strict=True)
        if entry is not None
    }
    return [found_of(item, digest, need, cached) for (item, digest), need in zip(items, needs, strict=True)]


def digest_of_memo(memo: SourceMemo | None, *, url_ttl: float, now: float) -> str | None:
    """The digest in a URL's memo; None where the URL's server has to be asked first."""
    return memo.digest if memo is not None and is_fresh(memo, url_ttl=url_ttl, now=now) else None


def is_fresh(memo: SourceMemo, *, url_ttl: float, now: float) -> bool:
    """Whether a memo holds without asking the server: for ``url_ttl`` seconds, or less where it said so."""
    longest = url_ttl if memo.max_age is None else min(url_ttl, memo.max_age)
    return now - memo.fetched_at < longest


def last_digest(item: Item, sources: Sources) -> str | None:
    """The digest that an item had when it was last downloaded, however long ago."""
    if item.source.url is None:
        return item.source.media_id
    memo = sources.get(source_key(item.source.url))
    return None if memo is None else memo.digest


def _wanted(
    item: Item,
    digest: str,
    track: Modality,
    model: ModelConfig,
    cards: Mapping[Modality, EncoderCard],
) -> Wanted:
    card = cards.get(track)
    if card is None:
        raise EncoderNotReady(f"encoder {model.encoder_for(track)!r} is not ready yet")
    key = embedding_key(digest=digest, track=track, card=card, options=item.options)
    return Wanted(key=key, track=track, encoder=card.name, encoder_identity=encoder_identity(card))


def found_of(item: Item, digest: str, need: Needs, cached: Mapping[str, PartRecord]) -> Found:
    """What is final and what is missing for one item; ``cached`` has cached parts by embedding key."""
    main = cached.get(need.main.key)
    audio = cached.get(need.audio.key) if need.audio is not None else None
    finished: dict[PartId, PartRecord] = {}
    if main is not None:
        finished[PartId(item.index, item.modality)] = main
    if audio is not None:
        finished[PartId(item.index, Modality.AUDIO)] = audio
    found = Found(
        item,
        digest,
        finished,
        main=need.main if main is None else None,
        audio=need.audio if audio is None else None,
    )
    has_audio = None if need.audio is None else _has_audio(main, audio)
    return found if has_audio is None else parts_of_video(found, has_audio=has_audio)


def _has_audio(main: PartRecord | None, audio: PartRecord | None) -> bool | None:
    """Whether a video has an audio track, as far as its cached parts show."""
    if main is not None and main.metadata is not None and main.metadata.audio is not None:
        return main.metadata.audio.present
    return None if audio is None else True
