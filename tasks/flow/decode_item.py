"""One item through ``decode``: probe, add the audio part, claim, decode each track, publish all at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from billiard.exceptions import SoftTimeLimitExceeded

from epd.contracts.errors import (
    BlobMissing,
    BlobSpaceFull,
    EncoderNotReady,
    EpdError,
    Internal,
    NoAudioTrack,
    StoreUnavailable,
)
from epd.contracts.job import PartId, PartRecord, Stage
from epd.contracts.media import AudioTrackMode, Modality
from epd.contracts.messages import DecodeMessage, EncodeMessage, Wanted
from epd.contracts.metadata import AudioTrackInfo
from epd.contracts.timings import DECODE, DECODE_QUEUE
from epd.store.values import Claim
from epd.telemetry.counters import Count
from tasks.flow.claims import claim, fail_flight, withdraw
from tasks.flow.context import Context, Tally
from tasks.flow.decode_failure import fail_decode, wanted_of
from tasks.flow.download_flight import call_off, take_along
from tasks.flow.lease import kept_flights
from tasks.flow.parts import audio_part, expire_item, main_part, open_parts
from tasks.flow.refetch import pause_of, send_back
from tasks.flow.tracks import audio_track_of, decode_track

logger = logging.getLogger(__name__)

#: What sends the item back to ``fetch``: its bytes are gone, or its key is no longer the right one.
_STALE = (BlobMissing, EncoderNotReady)


@dataclass(frozen=True, slots=True)
class _Work:
    """An item at the decoder: the message, its file and when the work began (Unix seconds)."""

    context: Context
    message: DecodeMessage
    path: Path
    started: float

    def timings(self) -> dict[str, float]:
        """The message's times and this stage's."""
        waited = max(0.0, self.started - self.message.enqueued_at)
        spent = self.context.clock() - self.started
        return {**self.message.timings, DECODE_QUEUE: waited, DECODE: spent}


def decode_item(context: Context, message: DecodeMessage) -> Tally:
    """Decode one item and publish its encode messages; returns what is to be counted.

    Raises:
        StoreUnavailable: store or broker do not answer; the message may be run again.
        SoftTimeLimitExceeded: the worker's limit struck; the caller fails the item.
    """
    started = context.clock()
    if started >= message.deadline:
        expire_item(context, message, message.item)
        return _drop(context, message, Count.DECODE_EXPIRED)
    still_open = open_parts(context, message, message.item, Stage.DECODE)
    if not still_open:
        return _drop(context, message, Count.DECODE_DROPPED)
    path = None
    try:
        path = context.store.blobs.path(message.blob)
        tally = _decode(_Work(context, message, path, started), still_open)
    except _STALE as error:
        return _go_back(context, message, error)
    except BlobSpaceFull as error:
        return _postpone(context, message, error)
    except (StoreUnavailable, SoftTimeLimitExceeded):
        raise
    except Exception as error:
        if path is not None and not path.exists():
            return _go_back(context, message, BlobMissing("the bytes went while they were decoded"))
        fail_decode(context, message, _as_typed(error, message))
        return {Count.DECODE_FAILURES: 1}
    context.store.blobs.free(message.blob)
    return tally


def _as_typed(error: Exception, message: DecodeMessage) -> EpdError:
    if isinstance(error, EpdError):
        return error
    logger.error("job %s item %s: decode failed", message.job_id, message.item.index, exc_info=error)
    return Internal("decoding failed; the worker's log tells why")


def _drop(context: Context, message: DecodeMessage, reason: Count) -> Tally:
    """Leave the flights of an item that nobody waits for any more, and free its bytes."""
    call_off(context, message, message.item)
    withdraw(context, message, message.item, wanted_of(message))
    context.store.blobs.free(message.blob)
    return {reason: 1}


def _go_back(context: Context, message: DecodeMessage, error: EpdError) -> Tally:
    if not send_back(context, message, message.item, error):
        fail_decode(context, message, error)
        return {Count.DECODE_FAILURES: 1}
    logger.info("job %s item %s goes back to fetch: %s", message.job_id, message.item.index, error)
    if isinstance(error, EncoderNotReady):  # the fetch will ask for another key
        withdraw(context, message, message.item, wanted_of(message))
    context.store.blobs.free(message.blob)
    return {Count.RETRIED_ITEMS: 1}


def _postpone(context: Context, message: DecodeMessage, error: EpdError) -> Tally:
    """Decode later, when encoding has freed room; without time left the item fails with the reason."""
    pause = pause_of(context, message)
    if pause is None:
        fail_decode(context, message, error)
        return {Count.DECODE_FAILURES: 1}
    context.publisher.decode([message], countdown=pause)
    return {Count.RETRIED_ITEMS: 1}


def _decode(work: _Work, still_open: frozenset[PartId]) -> Tally:
    message, item = work.message, work.message.item
    sound = audio_track_of(work.context, work.path) if item.modality is Modality.VIDEO else None
    if sound is not None and not sound.present and item.options.audio_track is AudioTrackMode.REQUIRE:
        return _refuse_silence(work, sound)
    wanted = _tracks_to_make(work, still_open, sound)
    claims = [claim(work.context, message, item, each, work.timings()) for each in wanted]
    _take_along(work, sound)
    owned = [each for each, answer in zip(wanted, claims, strict=True) if answer is Claim.OWNED]
    made = _make(work, owned, sound)
    return {
        Count.DECODE_ITEMS: made,
        Count.DECODE_FAILURES: len(owned) - made,
        Count.DECODE_SECONDS: work.context.clock() - work.started,
        Count.FLIGHTS_JOINED: claims.count(Claim.WAITING),
    }


def _take_along(work: _Work, sound: AudioTrackInfo | None) -> None:
    """Let those join who waited for the download of a video; its parts are known now."""
    if sound is not None:
        work.context.store.sources.note_sound(work.message.digest, sound.present)
        take_along(work.context, work.message, work.message.item, work.message.digest)


def _make(work: _Work, owned: Sequence[Wanted], sound: AudioTrackInfo | None) -> int:
    """Decode the tracks and hand them on in one batch; returns how many. What is not handed on is freed."""
    made: list[EncodeMessage] = []
    try:
        with kept_flights(work.context, [each.key for each in owned]):
            for each in owned:
                encode = _track(work, each, sound)
                made += [] if encode is None else [encode]
        work.context.publisher.encode(made)
    except BaseException:
        for encode in made:
            work.context.store.blobs.free(encode.raw.blob)
        raise
    return len(made)


def _refuse_silence(work: _Work, sound: AudioTrackInfo) -> Tally:
    """Fail this item alone for its missing sound; others may wait for the same frames without it."""
    message, jobs = work.message, work.context.store.jobs
    record = PartRecord.failed(NoAudioTrack("the video has no audio track"))
    for part in (main_part(message.item), audio_part(message.item)):
        jobs.finish(message.job_id, part, record)
    withdraw(work.context, message, message.item, wanted_of(message))
    _take_along(work, sound)
    return {Count.DECODE_FAILURES: 1}


def _tracks_to_make(work: _Work, still_open: frozenset[PartId], sound: AudioTrackInfo | None) -> list[Wanted]:
    """The tracks that the file really has and that are still wanted.

    A video's audio part is added here, before anything of the item can end: or the job could end first.
    """
    message, item = work.message, work.message.item
    main = message.main if main_part(item) in still_open else None
    audio = message.audio
    if audio is None or sound is None:
        return [] if main is None else [main]
    if not sound.present:
        _leave_sound(work, audio)
        return [] if main is None else [main]
    if not work.context.store.jobs.add_part(message.job_id, audio_part(item)):
        return []
    return [audio] if main is None else [main, audio]


def _leave_sound(work: _Work, audio: Wanted) -> None:
    """End this item's wait for a sound that is not there.

    Its flight is not failed: who sent the same bytes as audio gets the reason that decoding them as such has.
    """
    message = work.message
    record = PartRecord.failed(NoAudioTrack("the video has no audio track"))
    work.context.store.jobs.finish(message.job_id, audio_part(message.item), record)
    withdraw(work.context, message, message.item, [audio])


def _track(work: _Work, wanted: Wanted, sound: AudioTrackInfo | None) -> EncodeMessage | None:
    """Decode one track to its encode message. A track that fails, fails alone: then None."""
    message, item = work.message, work.message.item
    try:
        raw = decode_track(work.context, work.path, item, wanted)
    except (StoreUnavailable, BlobSpaceFull, SoftTimeLimitExceeded, *_STALE):
        raise
    except Exception as error:
        if not work.path.exists():
            raise BlobMissing("the bytes went while they were decoded") from error
        fail_flight(work.context, message, item, wanted, _as_typed(error, message))
        return None
    return EncodeMessage(
        job_id=message.job_id,
        model=message.model,
        priority=message.priority,
        deadline=message.deadline,
        enqueued_at=work.context.clock(),
        attempt=message.attempt,
        trace=message.trace,
        item=item,
        digest=message.digest,
        wanted=wanted,
        raw=raw,
        audio=sound if wanted.track is Modality.VIDEO else None,
        source_bytes=message.blob.nbytes,
        timings=work.timings(),
    )
