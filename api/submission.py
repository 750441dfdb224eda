"""From a request body to a job: admission, the cache, then the record, then the messages, in that order.

All of it is blocking and runs in one thread of the pool, so that a request costs one hop off the event
loop. Nothing that others can see happens before every check has passed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.admission import Admitted, admit, named_model
from api.cached import find_cached, first_parts
from api.inline import inline_held
from api.room import RETRY_AFTER, room_for
from api.schemas import EncodeRequest, OnDisconnect, parse_request
from api.services import Services
from api.sources import byte_limit
from epd.contracts.errors import EpdError, Internal, MediaTooLarge, NotFound, Overloaded
from epd.contracts.job import ErrorInfo, JobRecord, JobView, PartRecord, State
from epd.contracts.media import Item
from epd.contracts.messages import FetchMessage
from epd.lookup import Found, cards_of
from epd.settings import Settings
from epd.store.inline_release import GRACE
from epd.telemetry.tracing import span

logger = logging.getLogger(__name__)

#: Seconds in which a job has to be written. Bytes that a job holds are freed when ``GRACE`` has passed and
#: there is no such job; half of it keeps well away from that.
LONGEST_START = GRACE / 2


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job as it was recorded, the seconds that its caller wants to wait, and what follows if it leaves."""

    view: JobView
    wait: float
    on_disconnect: OnDisconnect


def submit(services: Services, body: bytes | bytearray, trace: Mapping[str, str]) -> Submitted:
    """Admit a request and start its job; a wholly cached one is final at once and publishes nothing.

    Raises:
        CallerFault: the request is at fault; nothing was stored.
        Overloaded, BlobSpaceFull, EncoderNotReady, StoreUnavailable: come again; no job is left waiting.
    """
    settings, store = services.settings, services.store
    request = parse_request(body)
    name, model = named_model(request, config=services.config, settings=settings)
    cards = cards_of(model, store.cards)
    admitted = admit(request, name=name, model=model, cards=cards, settings=settings)
    record = record_of(request, admitted.items, name=name, settings=settings)
    found = find_cached(admitted, store, url_ttl=settings.url_ttl)
    services.metrics.saved_bytes.inc(sum(each.saved_bytes for each in found.values()))
    todo = [item for item in admitted.items if not (item.index in found and found[item.index].complete)]
    sizes = _upload_sizes(services, todo, admitted)
    with (
        span(
            "epd.submit", trace, items=len(admitted.items), cached=len(admitted.items) - len(todo)
        ) as carrier,
        room_for(services, record, todo, sizes),
        inline_held(store, record, todo, admitted.inline),
    ):
        view = _start(services, record, found, todo, carrier)
        return Submitted(view, admitted.wait, admitted.on_disconnect)


def _upload_sizes(services: Services, todo: list[Item], admitted: Admitted) -> dict[int, int]:
    """Bytes of the items that are uploads or came with the request, by index; the uploads' lives renewed.

    Raises:
        NotFound: an upload is not there.
        MediaTooLarge: it is too large for what it is to be read as.
    """
    sizes: dict[int, int] = {}
    for item in todo:
        media_id = item.source.media_id
        if media_id is None:
            continue
        if media_id in admitted.inline:
            sizes[item.index] = len(admitted.inline[media_id])
            continue
        blob = services.store.blobs.media(media_id)
        if blob is None:
            raise NotFound(f"items[{item.index}].media_id: no such upload, or its time is over")
        limit = byte_limit(item.modality, services.settings)
        if blob.nbytes > limit:
            raise MediaTooLarge(
                f"items[{item.index}]: {blob.nbytes} bytes, the limit of {item.modality} is {limit}"
            )
        sizes[item.index] = blob.nbytes
    return sizes


def record_of(request: EncodeRequest, items: Sequence[Item], *, name: str, settings: Settings) -> JobRecord:
    """A new job for a request of the model ``name`` whose items were admitted, as of now."""
    now = time.time()
    return JobRecord(
        job_id=uuid.uuid4().hex,
        model=name,
        created=now,
        deadline=now + (settings.job_deadline if request.deadline is None else request.deadline),
        priority=request.priority,
        items=tuple(items),
        ids=tuple(asked.id for asked in request.items),
    )


def _start(
    services: Services,
    record: JobRecord,
    found: Mapping[int, Found],
    todo: list[Item],
    trace: dict[str, str],
) -> JobView:
    parts = first_parts(record.items, found)
    services.store.jobs.create(record, parts, watcher=services.completions.watcher)
    if todo:
        _check_in_time(services, record)
        _publish(services, record, todo, trace)
    return JobView(record=record, parts={str(part): state for part, state in parts.items()})


def _check_in_time(services: Services, record: JobRecord) -> None:
    """A process that was stopped meanwhile may find its inline bytes gone, and its room given to others.

    Raises:
        Overloaded: the job was not written in time; it is closed, and its caller may come again.
    """
    if time.time() - record.created > LONGEST_START:
        error = Overloaded("the request was held up for too long", retry_after=RETRY_AFTER)
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
