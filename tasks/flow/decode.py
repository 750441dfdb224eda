"""The ``decode`` stage: probe an item, add the audio part, claim, decode each track, publish in one batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from epd.contracts.embedding import AudioTrackInfo
from epd.contracts.errors import BlobMissing, BlobSpaceFull, EncoderNotReady, EpdError, StoreUnavailable
from epd.contracts.job import PartId, Stage
from epd.contracts.media import Modality
from epd.contracts.messages import DecodeMessage, Wanted
from epd.lookup import Found, parts_of_video
from epd.telemetry.counters import Count
from tasks.flow.context import Context, Tally
from tasks.flow.flights import give_up_decode, leave_download, serve_waiters
from tasks.flow.item import DecodeRun, pause_of
from tasks.flow.settle import settle, without_final_parts
from tasks.flow.tracks import STALE, as_typed, audio_track_of, make_tracks

logger = logging.getLogger(__name__)


#: Seconds for which the claim of an item that was fetched in this process counts without being made again.
CLAIM_LIFE = 5.0


def decode_item(context: Context, message: DecodeMessage, *, is_claimed: bool = False) -> Tally:
    """Decode one item and publish its encode messages.

    Args:
        context: what to work with.
        message: the item.
        is_claimed: whether this process claimed the item's embeddings when it made the message.

    Returns:
        What to count.

    Raises:
        StoreUnavailable: store or broker do not answer; the message may be run again.
    """
    run = DecodeRun(context, message, message.item)
    if run.expired:
        run.expire()
        return _drop(run, Count.DECODE_EXPIRED)
    # A video's parts are known only now, so they are always claimed here.
    is_claimed = is_claimed and message.audio is None and run.queued() < CLAIM_LIFE
    open_parts = frozenset({run.main_part}) if is_claimed else run.open_parts(Stage.DECODE)
    if not open_parts:
        return _drop(run, Count.DECODE_DROPPED)
    path = None
    try:
        path = context.store.blobs.path(message.blob)
        tally = _decode_owned(run, path, run.wanted) if is_claimed else _decode(run, path, open_parts)
    except STALE as error:
        return _go_back(run, error)
    except BlobSpaceFull as error:
        return _postpone(run, error)
    except StoreUnavailable:
        raise
    except Exception as error:
        if path is not None and not path.exists():
            return _go_back(run, BlobMissing("the bytes were removed while they were decoded"))
        return _fail(run, as_typed(error, run))
    run.free_source()
    return tally


def _decode(run: DecodeRun, path: Path, open_parts: frozenset[PartId]) -> Tally:
    message = run.message
    needed = Found(run.item, message.digest, {}, message.main, message.audio)
    track = audio_track_of(run.context, path) if run.item.modality is Modality.VIDEO else None
    found = needed if track is None else parts_of_video(needed, has_audio=track.present)
    settled = settle(run, without_final_parts(found, open_parts))
    # The flight of audio that is missing continues for others: sent as audio, the same bytes fail for another
    # reason.
    run.withdraw(wanted for wanted in needed.missing if wanted not in found.missing)
    if track is not None:
        run.context.store.sources.note_audio(message.digest, track.present)
        serve_waiters(run, message.digest)
    if found.finished:  # the item requires audio that the file lacks; others may wait for the frames alone
        return {Count.DECODE_FAILURES: 1}
    tally = _decode_owned(run, path, settled.owned, track)
    return {**tally, Count.FLIGHTS_JOINED: settled.joined}


def _decode_owned(
    run: DecodeRun, path: Path, owned: Sequence[Wanted], track: AudioTrackInfo | None = None
) -> Tally:
    made = make_tracks(run, path, owned, track)
    return {
        Count.DECODE_ITEMS: made,
        Count.DECODE_FAILURES: len(owned) - made,
        Count.DECODE_SECONDS: run.spent(),
    }


def _drop(run: DecodeRun, reason: Count) -> Tally:
    """Leave the flights of an item that is no longer needed, and free its bytes."""
    leave_download(run)
    run.withdraw(run.wanted)
    run.free_source()
    return {reason: 1}


def _go_back(run: DecodeRun, error: EpdError) -> Tally:
    """Send the item back to ``fetch``; after too many tries it fails with the error."""
    if not run.send_back():
        return _fail(run, error)
    logger.info("job %s item %s goes back to fetch: %s", run.message.job_id, run.item.index, error)
    if isinstance(error, EncoderNotReady):  # the fetch will ask for another key
        run.withdraw(run.wanted)
    run.free_source()
    return {Count.RETRIED_ITEMS: 1}


def _postpone(run: DecodeRun, error: EpdError) -> Tally:
    """Decode later, when encoding has freed space; if the deadline comes first, the item fails."""
    pause = pause_of(run.message, now=run.context.clock())
    if pause is None:
        return _fail(run, error)
    run.context.publisher.decode([run.message], countdown=pause)
    return {Count.RETRIED_ITEMS: 1}


def _fail(run: DecodeRun, error: EpdError) -> Tally:
    give_up_decode(run, error)
    return {Count.DECODE_FAILURES: 1}
