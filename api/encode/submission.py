"""From a plan to a job: capacity, inline bytes, the record, then the messages, in that order.

A job of downloads takes one round trip from the event loop for capacity and record, and a thread for its
messages alone. A job with bytes of its own, whose files have to be written or looked at, starts in a thread
altogether. Nothing becomes visible to others before every check has passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import anyio

from api.encode.capacity import RETRY_AFTER, at_its_bound
from api.encode.plan import Plan
from api.encode.request import OnDisconnect
from api.encode.sources import byte_limit
from api.jobs.completions import Subscription
from api.services import Services
from epd.contracts.errors import BlobSpaceFull, EpdError, Internal, MediaTooLarge, NotFound, Overloaded
from epd.contracts.job import JobRecord, JobView, PartId, PartRecord
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
#: Downloads that one job may have to be started on the event loop: its JSON would block the loop.
_FEW_DOWNLOADS = 64


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job as it was written, the seconds that its caller wants to wait, and what follows if it leaves.

    ``subscription``, if there is one, has existed since before anything was published.
    """

    view: JobView
    wait: float
    on_disconnect: OnDisconnect
    subscription: Subscription | None = None


async def submit(
    services: Services, plan: Plan, looked: LookedUp, trace: Mapping[str, str], waiting: ExitStack
) -> Submitted:
    """Start the job of a plan. One that turns out to be all cached is final at once and publishes nothing.

    The subscription of the job, if any, lasts until ``waiting`` is closed.

    Raises:
        NotFound, MediaTooLarge: the request is at fault; nothing was stored.
        Overloaded, BlobSpaceFull, StoreUnavailable: retry later; no job is left waiting.
    """
    few_downloads = len(plan.items) <= _FEW_DOWNLOADS and all(item.source.url for item in plan.items)
    if few_downloads and not looked.unsure:
        found = plan.found(looked.memos, _cached(looked))
        if todo := _todo(plan, found):
            services.capacity.check_counters(todo)
            subscription = None
            if plan.wait > 0:
                subscribe = services.completions.subscribe
                subscription = waiting.enter_context(subscribe(plan.record.job_id, final_only=True))
            parts = await _submit_downloads(services, plan, looked, found, todo, trace)
            return _submitted(plan, parts, subscription)
    return await services.call(_submit, services, plan, looked, trace)


async def _submit_downloads(
    services: Services,
    plan: Plan,
    looked: LookedUp,
    found: Mapping[int, Found],
    todo: list[Item],
    trace: Mapping[str, str],
) -> dict[PartId, PartRecord]:
    """Start a job that has no bytes of its own, on the event loop."""
    _count_saved(services, found)
    record, parts = plan.record, _first_parts(plan.items, found)
    with span("epd.submit", trace, items=len(plan.items), cached=len(plan.items) - len(todo)) as carrier:
        try:
            admitted = await services.capacity.start(
                record, parts, todo, hits=_hits(parts, looked), is_awaited=plan.wait > 0
            )
            if admitted:
                await services.call(_publish, services, record, todo, carrier)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await services.call(_abandon, services, record, error)
            raise
        if not admitted:
            raise at_its_bound(record.priority)
    return parts


def _abandon(services: Services, record: JobRecord, error: BaseException) -> None:
    """Close a job that may have been written, and release what it holds."""
    _close_failed(services, record, error)
    services.capacity.release(record.job_id)


def _submit(services: Services, plan: Plan, looked: LookedUp, trace: Mapping[str, str]) -> Submitted:
    found = _found(services.store, plan, looked)
    _count_saved(services, found)
    todo = _todo(plan, found)
    sizes = _upload_sizes(services, todo, plan)
    with (
        span("epd.submit", trace, items=len(plan.items), cached=len(plan.items) - len(todo)) as carrier,
        services.capacity.hold(plan.record, todo, sizes),
        hold_inline_bytes(services.store, plan.record, todo, plan.inline),
    ):
        parts = _first_parts(plan.items, found)
        _start(services, plan.record, parts, todo, _hits(parts, looked), carrier)
        return _submitted(plan, parts)


def _submitted(
    plan: Plan, parts: Mapping[PartId, PartRecord], subscription: Subscription | None = None
) -> Submitted:
    view = JobView(record=plan.record, parts={str(part): state for part, state in parts.items()})
    return Submitted(view, plan.wait, plan.on_disconnect, subscription)


def _count_saved(services: Services, found: Mapping[int, Found]) -> None:
    services.metrics.saved_bytes.inc(sum(each.saved_bytes for each in found.values()))


def _todo(plan: Plan, found: Mapping[int, Found]) -> list[Item]:
    """The items that the cache does not answer."""
    return [item for item in plan.items if not (item.index in found and found[item.index].complete)]


def _hits(parts: Mapping[PartId, PartRecord], looked: LookedUp) -> int:
    return sum(part.ref is not None and part.ref.key in looked.parts for part in parts.values())


def _cached(looked: LookedUp) -> dict[str, PartRecord]:
    return {key: part.record for key, part in looked.parts.items()}


def _found(store: Store, plan: Plan, looked: LookedUp) -> Mapping[int, Found]:
    """What is found, once the blocking look-up has decided about the keys that ``looked`` is unsure of."""
    cached = _cached(looked)
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
    parts: dict[PartId, PartRecord],
    todo: list[Item],
    hits: int,
    trace: dict[str, str],
) -> None:
    services.store.jobs.create(record, parts, watcher=services.completions.watcher, hits=hits)
    if todo:
        try:
            _publish(services, record, todo, trace)
        except Exception as error:
            _close_failed(services, record, error)
            raise


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


def _publish(services: Services, record: JobRecord, todo: list[Item], trace: dict[str, str]) -> None:
    """Publish a job that was written, unless the process was suspended for so long that it may hold nothing.

    Raises:
        Overloaded: the job was not written in time: its bytes may be gone, its capacity given to others.
    """
    if time.time() - record.created > LONGEST_START:
        raise Overloaded("the request was delayed for too long", retry_after=RETRY_AFTER)
    services.publish(fetch_messages(record, todo, services.settings.chunk_items, trace))


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


def _close_failed(services: Services, record: JobRecord, cause: BaseException) -> None:
    shown = cause if isinstance(cause, EpdError) else Internal("the job could not be queued")
    try:
        services.store.jobs.close(record.job_id, PartRecord.failed(shown))
    except EpdError as error:
        logger.warning("job %s could not be closed, its deadline ends it: %s", record.job_id, error)


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
