"""From a plan to a job: capacity, inline bytes, the record, then the messages, in that order.

All of it blocks and runs in one thread of the pool. Nothing becomes visible to others before every check has
passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from api.encode.capacity import RETRY_AFTER
from api.encode.plan import Plan
from api.encode.request import OnDisconnect
from api.encode.sources import byte_limit
from api.services import Services
from epd.contracts.errors import BlobSpaceFull, EpdError, Internal, MediaTooLarge, NotFound, Overloaded
from epd.contracts.job import ErrorInfo, JobRecord, JobView, PartId, PartRecord, State
from epd.contracts.media import Item
from epd.contracts.messages import FetchMessage
from epd.lookup import Found
from epd.store.cache.async_cache import LookedUp
from epd.store.open import GRACE, Store, release_inline
from epd.store.values import InlineHolder
from epd.telemetry.tracing import span

logger = logging.getLogger(__name__)

#: Seconds within which a job has to be written. The bytes that it holds are freed when there is no such job
#: after ``GRACE``; half of that keeps well clear of it.
LONGEST_START = GRACE / 2


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job as it was written, the seconds that its caller wants to wait, and what follows if it leaves."""

    view: JobView
    wait: float
    on_disconnect: OnDisconnect


def submit(services: Services, plan: Plan, looked: LookedUp, trace: Mapping[str, str]) -> Submitted:
    """Start the job of a plan. One that turns out to be all cached is final at once and publishes nothing.

    Raises:
        NotFound, MediaTooLarge: the request is at fault; nothing was stored.
        Overloaded, BlobSpaceFull, StoreUnavailable: retry later; no job is left waiting.
    """
    found = _found(services.store, plan, looked)
    services.metrics.saved_bytes.inc(sum(each.saved_bytes for each in found.values()))
    todo = [item for item in plan.items if not (item.index in found and found[item.index].complete)]
    sizes = _upload_sizes(services, todo, plan)
    with (
        span("epd.submit", trace, items=len(plan.items), cached=len(plan.items) - len(todo)) as carrier,
        services.capacity.hold(plan.record, todo, sizes),
        hold_inline_bytes(services.store, plan.record, todo, plan.inline),
    ):
        view = _start(services, plan.record, found, todo, looked, carrier)
        return Submitted(view, plan.wait, plan.on_disconnect)


def _found(store: Store, plan: Plan, looked: LookedUp) -> Mapping[int, Found]:
    """What is found, once the blocking look-up has decided about the keys that ``looked`` is unsure of."""
    cached = {key: part.record for key, part in looked.parts.items()}
    entries = store.embeddings.lookup(looked.unsure, counted=True) if looked.unsure else ()
    cached |= {entry.ref.key: PartRecord.done(entry, cached=True) for entry in entries if entry is not None}
    return plan.found(looked.memos, cached)


def _upload_sizes(services: Services, todo: list[Item], plan: Plan) -> dict[int, int]:
    """Bytes of the items that are uploads or came with the request, by index. Uploads are kept for longer.

    Raises:
        NotFound: an upload is not there.
        MediaTooLarge: it is too large for the type of its item.
    """
    sizes: dict[int, int] = {}
    for item in todo:
        media_id = item.source.media_id
        if media_id is None:
            continue
        if media_id in plan.inline:
            sizes[item.index] = len(plan.inline[media_id])
            continue
        blob = services.store.blobs.media(media_id)
        if blob is None:
            raise NotFound(f"items[{item.index}].media_id: no such upload, or it has expired")
        limit = byte_limit(item.modality, services.settings)
        if blob.nbytes > limit:
            raise MediaTooLarge(
                f"items[{item.index}]: {blob.nbytes} bytes, the limit of {item.modality} is {limit}"
            )
        sizes[item.index] = blob.nbytes
    return sizes


def _start(
    services: Services,
    record: JobRecord,
    found: Mapping[int, Found],
    todo: list[Item],
    looked: LookedUp,
    trace: dict[str, str],
) -> JobView:
    parts = _first_parts(record.items, found)
    hits = sum(part.ref is not None and part.ref.key in looked.parts for part in parts.values())
    services.store.jobs.create(record, parts, watcher=services.completions.watcher, hits=hits)
    if todo:
        _check_in_time(services, record)
        _publish(services, record, todo, trace)
    return JobView(record=record, parts={str(part): state for part, state in parts.items()})


def _first_parts(items: Sequence[Item], found: Mapping[int, Found]) -> dict[PartId, PartRecord]:
    """The parts that a new job starts with: final where the cache answers, else queued.

    A video whose frames are cached and whose audio is not starts with both parts, or the job would be
    final before its audio is encoded.
    """
    parts: dict[PartId, PartRecord] = {}
    for item in items:
        answer = found.get(item.index)
        if answer is None or answer.main is not None:
            parts[PartId(item.index, item.modality)] = PartRecord()
        if answer is not None:
            parts |= answer.finished
            parts |= {part: PartRecord() for part in answer.certain_parts if part not in parts}
    return parts


def _check_in_time(services: Services, record: JobRecord) -> None:
    """Refuse a job whose process was suspended: its bytes may be gone, and its capacity given to others.

    Raises:
        Overloaded: the job was not written in time; it is closed, and its caller may retry.
    """
    if time.time() - record.created > LONGEST_START:
        error = Overloaded("the request was delayed for too long", retry_after=RETRY_AFTER)
        _close_failed(services, record.job_id, error)
        raise error


def _publish(services: Services, record: JobRecord, todo: list[Item], trace: dict[str, str]) -> None:
    try:
        services.publish(fetch_messages(record, todo, services.settings.chunk_items, trace))
    except Exception as error:
        cause = error if isinstance(error, EpdError) else Internal("the job could not be queued")
        _close_failed(services, record.job_id, cause)
        raise


def fetch_messages(
    record: JobRecord, items: list[Item], chunk: int, trace: dict[str, str]
) -> list[FetchMessage]:
    """The messages that start these items, at most ``chunk`` items each."""
    now = time.time()
    return [
        FetchMessage(
            job_id=record.job_id,
            model=record.model,
            priority=record.priority,
            deadline=record.deadline,
            enqueued_at=now,
            trace=trace,
            items=tuple(items[at : at + chunk]),
        )
        for at in range(0, len(items), chunk)
    ]


def _close_failed(services: Services, job_id: str, cause: EpdError) -> None:
    try:
        services.store.jobs.close(job_id, PartRecord(state=State.FAILED, error=ErrorInfo.of(cause)))
    except EpdError as error:
        logger.warning("job %s could not be closed, its deadline ends it: %s", job_id, error)


@contextmanager
def hold_inline_bytes(
    store: Store, record: JobRecord, todo: Sequence[Item], inline: Mapping[str, bytes]
) -> Iterator[None]:
    """Hold a job's inline bytes while the block starts it, and from then on until it is final.

    When the block raises, nothing is held. A job that refers to the inline bytes of another by their digest
    holds them too.

    Args:
        store: The store.
        record: The job.
        todo: Its items that are not answered by the cache.
        inline: Bytes by media id.

    Raises:
        BlobSpaceFull: there is no space, even after what finished jobs left was freed.
        StoreUnavailable: the store does not answer.
    """
    needed = sorted({item.source.media_id for item in todo if item.source.media_id is not None})
    try:
        for media_id in needed:
            _hold(store, record, media_id, inline.get(media_id))
        yield
    except BaseException:
        store.blobs.drop_inline([InlineHolder(media_id, record.job_id) for media_id in needed])
        raise


def _hold(store: Store, record: JobRecord, media_id: str, data: bytes | None) -> None:
    if data is None:
        store.blobs.join_inline(media_id, record.job_id, record.deadline)
        return
    try:
        store.blobs.keep_inline(media_id, record.job_id, data, record.deadline)
    except BlobSpaceFull:
        if not release_inline(store, time.time()):
            raise
        store.blobs.keep_inline(media_id, record.job_id, data, record.deadline)
