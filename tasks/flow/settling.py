"""An item whose digest is known: what is cached ends, what others make is waited for, the rest is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from epd.contracts.errors import NoAudioTrack
from epd.contracts.job import PartId, PartRecord, Stage
from epd.contracts.media import AudioTrackMode, Item, Modality
from epd.contracts.messages import FetchMessage, Wanted
from epd.lookup import Found, look_up, needs_of
from epd.store.values import Claim
from tasks.flow.claims import claim
from tasks.flow.context import Context
from tasks.flow.parts import audio_part, finish, main_part, open_parts

#: What a digest needs and what of it is cached.
LookUp = Callable[[str], Found]


def look_up_of(context: Context, message: FetchMessage, item: Item) -> LookUp:
    """The look-up of a digest under the message's model. Raises at once where an encoder is missing."""
    _, model = context.config.model(message.model)
    cards = context.cards.of(message.model, model)
    needs_of(item, "", model=model, cards=cards)

    def look_up_digest(digest: str) -> Found:
        return look_up([(item, digest)], model=model, cards=cards, embeddings=context.store.embeddings)[0]

    return look_up_digest


def only_open(found: Found, wanted_parts: frozenset[PartId]) -> Found:
    """Without the main part where that is final already: an item fetched again for its sound alone."""
    return found if main_part(found.item) in wanted_parts else replace(found, main=None)


def needs_no_bytes(context: Context, found: Found) -> bool:
    """Whether all that the item wants is there or in the air, so that its bytes are of no use."""
    missing = found.missing
    if _sound_decides(found):
        sound = sound_of(context, found)
        if sound is None:
            return False
        missing = missing if sound else _frames_alone(found)
    return all(context.store.flights.flying([wanted.key for wanted in missing]))


def join(context: Context, message: FetchMessage, item: Item, digest: str) -> bool:
    """Have an item join what is cached or in the air for its digest, without bytes.

    False: something is left that nobody else makes, so the item has to be fetched.
    """
    wanted_parts = open_parts(context, message, item, Stage.FETCH)
    if not wanted_parts:
        return True
    found = only_open(look_up_of(context, message, item)(digest), wanted_parts)
    return not settle(context, message, found, {})


def settle(
    context: Context, message: FetchMessage, found: Found, timings: Mapping[str, float]
) -> tuple[Wanted, ...]:
    """Finish what is cached and claim what is missing; returns what is this item's to make."""
    if not _finish_cached(context, message, found, timings):
        return ()
    if not _sound_decides(found):
        return _claimed(context, message, found, found.missing, timings)
    sound = sound_of(context, found)
    if sound is None:
        # Decoding claims: a video that waited here for the frames of another job would end with them,
        # before its own audio part were known.
        return found.missing
    return (
        _with_sound(context, message, found, timings) if sound else _silent(context, message, found, timings)
    )


def sound_of(context: Context, found: Found) -> bool | None:
    """Whether the item's video has sound, by its cached frames or by a decoder's note; None: nobody knows."""
    record = found.finished.get(main_part(found.item))
    info = record.metadata.audio if record is not None and record.metadata is not None else None
    return info.present if info is not None else context.store.sources.sound(found.digest)


def _sound_decides(found: Found) -> bool:
    """Whether the item's parts depend on the sound of its video."""
    return found.item.modality is Modality.VIDEO and found.audio is not None


def _finish_cached(
    context: Context, message: FetchMessage, found: Found, timings: Mapping[str, float]
) -> bool:
    """Finish the parts that are final at once. False: the job is gone.

    The audio part is added before the main part ends, or the job could end without it.
    """
    main, audio = main_part(found.item), audio_part(found.item)
    has_audio_part = audio != main and (
        audio in found.finished or (_sound_decides(found) and found.main is None and sound_of(context, found))
    )
    if has_audio_part and not context.store.jobs.add_part(message.job_id, audio):
        return False
    for part, record in found.finished.items():
        finish(context, message, part, record, timings)
    return True


def _with_sound(
    context: Context, message: FetchMessage, found: Found, timings: Mapping[str, float]
) -> tuple[Wanted, ...]:
    """Both tracks are claimed, the part of the sound being written down first."""
    if not context.store.jobs.add_part(message.job_id, audio_part(found.item)):
        return ()
    return _claimed(context, message, found, found.missing, timings)


def _silent(
    context: Context, message: FetchMessage, found: Found, timings: Mapping[str, float]
) -> tuple[Wanted, ...]:
    """The frames alone are claimed; an item that must have sound fails alone."""
    if found.item.options.audio_track is AudioTrackMode.REQUIRE:
        failed = PartRecord.failed(NoAudioTrack("the video has no audio track"))
        finish(context, message, main_part(found.item), failed, timings)
        return ()
    return _claimed(context, message, found, _frames_alone(found), timings)


def _frames_alone(found: Found) -> tuple[Wanted, ...]:
    """What is missing of a video without sound."""
    return () if found.main is None else (found.main,)


def _claimed(
    context: Context,
    message: FetchMessage,
    found: Found,
    missing: tuple[Wanted, ...],
    timings: Mapping[str, float],
) -> tuple[Wanted, ...]:
    """What of the missing is ours to make."""
    item = found.item
    return tuple(
        wanted for wanted in missing if claim(context, message, item, wanted, timings) is Claim.OWNED
    )
