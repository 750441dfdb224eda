"""Decode the tracks of an item: a raw blob and an encode message for each, published in one batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from epd.contracts.embedding import AudioRules, AudioTrackInfo, EncoderCard, VideoRules
from epd.contracts.errors import (
    BlobMissing,
    BlobSpaceFull,
    EncoderNotReady,
    EpdError,
    Internal,
    StoreUnavailable,
)
from epd.contracts.media import BlobRef, Modality, RawAudio, RawFrames, RawImage
from epd.contracts.messages import EncodeMessage, Wanted
from epd.identity import encoder_identity
from epd.store.values import BlobKind
from tasks.flow.context import Context
from tasks.flow.item import DecodeRun
from workers.decode.children import DecodeChildren
from workers.limits import decode_limits

#: Seconds for opening, reading and writing files, in addition to the decode timeout.
DECODE_SLACK = 15.0

logger = logging.getLogger(__name__)

#: Errors that send the item back to ``fetch``: its bytes are gone, or its key is out of date.
STALE = (BlobMissing, EncoderNotReady)


def audio_track_of(context: Context, path: Path) -> AudioTrackInfo:
    """Whether a video file has audio, and the seconds that its header states. An animation has none.

    Raises:
        CallerFault: the file is not media, or cannot be read.
    """
    limits = decode_limits(context.settings)
    track = _decoder(context).audio_track(path, limits=limits, timeout=_longest(context))
    if track is None:
        return AudioTrackInfo(present=False)
    return AudioTrackInfo(present=True, seconds=track.duration)


def make_tracks(run: DecodeRun, path: Path, owned: Sequence[Wanted], audio: AudioTrackInfo | None) -> int:
    """Decode tracks and publish them in one batch. A track that cannot be decoded fails alone.

    Returns:
        How many were published.

    Raises:
        StoreUnavailable, BlobSpaceFull, BlobMissing, EncoderNotReady: none was published, and their blobs
            are freed.
    """
    made: list[EncodeMessage] = []
    try:
        for wanted in owned:
            encode = _track(run, path, wanted, audio)
            made += [] if encode is None else [encode]
        run.context.publisher.encode(made)
    except BaseException:
        for encode in made:
            run.context.store.blobs.free(encode.raw.blob)
        raise
    return len(made)


def as_typed(error: Exception, run: DecodeRun) -> EpdError:
    """The error with which a part fails. An unexpected one is logged and becomes ``Internal``."""
    if isinstance(error, EpdError):
        return error
    logger.error("job %s item %s: decode failed", run.message.job_id, run.item.index, exc_info=error)
    return Internal("decoding failed; the worker's log says why")


def _track(run: DecodeRun, path: Path, wanted: Wanted, audio: AudioTrackInfo | None) -> EncodeMessage | None:
    """Decode one track to its encode message; None if it failed."""
    try:
        raw = _decode(run, path, wanted)
    except (StoreUnavailable, BlobSpaceFull, *STALE):
        raise
    except Exception as error:
        if not path.exists():
            raise BlobMissing("the bytes were removed while they were decoded") from error
        run.fail_flight(wanted, as_typed(error, run))
        return None
    message = run.message
    return EncodeMessage(
        job_id=message.job_id,
        model=message.model,
        priority=message.priority,
        deadline=message.deadline,
        enqueued_at=run.context.clock(),
        attempt=message.attempt,
        trace=message.trace,
        item=run.item,
        digest=message.digest,
        wanted=wanted,
        raw=raw,
        audio=audio if wanted.track is Modality.VIDEO else None,
        source_bytes=message.blob.nbytes,
        timings=run.timings(),
    )


def _decode(run: DecodeRun, path: Path, wanted: Wanted) -> RawImage | RawFrames | RawAudio:
    """Decode one track into a new raw blob, which is removed when decoding fails.

    Its space is reserved when the header is read, before anything is decoded.

    Raises:
        CallerFault: the media is at fault.
        DecodeTimeout, BlobSpaceFull: as ``workers.decode.decode.decode``.
        EncoderNotReady: the encoder changed since the key was built, so its rules may differ.
    """
    context, card = run.context, _card_of(run.context, wanted)
    with context.store.blobs.create(BlobKind.RAW) as (name, file):
        raw = _decoder(context).decode(
            path,
            modality=wanted.track,
            options=run.item.options,
            rules=_rules(card, wanted.track),
            limits=replace(decode_limits(context.settings), hold=context.hold_for(name)),
            out=Path(file.name),
            timeout=_longest(context),
        )
    return raw.model_copy(update={"blob": BlobRef(name=name, nbytes=raw.blob.nbytes)})


def _decoder(context: Context) -> DecodeChildren:
    if context.decoder is None:
        raise Internal("this process does not decode")
    return context.decoder


def _longest(context: Context) -> float:
    """Seconds after which a decode is given up: its runs of ffmpeg, and some for reading and writing."""
    return context.settings.decode_timeout + DECODE_SLACK


def _card_of(context: Context, wanted: Wanted) -> EncoderCard:
    card = context.store.cards.get([wanted.encoder])[0]
    if card is None or encoder_identity(card) != wanted.encoder_identity:
        raise EncoderNotReady(f"encoder {wanted.encoder!r} changed while the item was on its way")
    return card


def _rules(card: EncoderCard, track: Modality) -> AudioRules | VideoRules | None:
    return {Modality.IMAGE: None, Modality.VIDEO: card.video, Modality.AUDIO: card.audio}[track]
