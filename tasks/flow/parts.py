"""Ending parts: failed, expired, cached. A part ends once; whoever comes later changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from epd.contracts.errors import DeadlineExceeded, EpdError
from epd.contracts.job import ErrorInfo, PartId, PartRecord, Stage, State
from epd.contracts.media import Item, Modality
from epd.contracts.messages import Envelope
from tasks.flow.context import Context


def main_part(item: Item) -> PartId:
    """The part of the item's own media type."""
    return PartId(item.index, item.modality)


def audio_part(item: Item) -> PartId:
    """The part of a video's sound; for an audio item it is the main part."""
    return PartId(item.index, Modality.AUDIO)


def possible_parts(item: Item) -> tuple[PartId, ...]:
    """Every part that the item may have, the main one first."""
    main = main_part(item)
    return (main, audio_part(item)) if item.modality is Modality.VIDEO else (main,)


def open_parts(context: Context, message: Envelope, item: Item, stage: Stage) -> frozenset[PartId]:
    """The parts that still wait for a result, marked as running at this stage. Empty: drop the work."""
    jobs = context.store.jobs
    return frozenset(part for part in possible_parts(item) if jobs.advance(message.job_id, part, stage))


def finish(
    context: Context, message: Envelope, part: PartId, record: PartRecord, timings: Mapping[str, float]
) -> None:
    """Make a part final with the time it took here."""
    record = record.model_copy(update={"timings": dict(timings)})
    context.store.jobs.finish(message.job_id, part, record)


def fail_item(context: Context, message: Envelope, item: Item, error: EpdError) -> None:
    """Fail every part of an item that is not final yet."""
    for part in possible_parts(item):
        context.store.jobs.finish(message.job_id, part, PartRecord.failed(error))


def expire_item(context: Context, message: Envelope, item: Item) -> None:
    """End every part of an item whose deadline has passed."""
    error = ErrorInfo.of(DeadlineExceeded("the deadline passed before the item was done"))
    for part in possible_parts(item):
        context.store.jobs.finish(message.job_id, part, PartRecord(state=State.EXPIRED, error=error))
