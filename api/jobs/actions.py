"""What a request does with a job: read it, wait for it, watch it, cancel it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress

from api.jobs.completions import ClientConnection, Subscription
from api.services import Services
from epd.contracts.errors import (
    CallerFault,
    Cancelled,
    DeadlineExceeded,
    EncoderNotReady,
    EpdError,
    NotFound,
    StoreUnavailable,
)
from epd.contracts.job import FINAL_STATES, ErrorInfo, JobRecord, JobView, PartId, PartRecord, State
from epd.contracts.messages import FetchMessage
from epd.identity import download_key
from epd.lookup import cards_of, last_digest, needs_of

logger = logging.getLogger(__name__)

#: Seconds after which a waiting request reads the job again without a notice.
POLL_SECONDS = 2.0


def is_final(view: JobView) -> bool:
    """Whether every part of the job is final."""
    return all(part.state in FINAL_STATES for part in view.parts.values())


async def read_job(services: Services, job_id: str, record: JobRecord | None = None) -> JobView:
    """The job as it stands; one that is past its deadline is closed as expired first.

    The record is not parsed again where the caller has it.

    Raises:
        NotFound: there is no such job, or it has expired.
    """
    view = await _view(services, job_id, record)
    if not is_final(view) and time.time() > view.record.deadline:
        return await _close(services, view, State.EXPIRED, DeadlineExceeded("the job's deadline passed"))
    return view


async def wait_job(services: Services, job_id: str, seconds: float, caller: ClientConnection) -> JobView:
    """The job when it is final, or as it stands after ``seconds`` or when its caller has left.

    The wait goes on while the store is unavailable, up to ``seconds``; it ends with what was last known.
    """
    end = time.monotonic() + seconds
    with services.completions.subscribe(job_id, final_only=True) as subscription:
        view = await read_job(services, job_id)
        return await wait_subscribed(services, view, subscription, end, caller)


async def wait_subscribed(
    services: Services, view: JobView, subscription: Subscription, end: float, caller: ClientConnection
) -> JobView:
    """As ``wait_job``, until ``end`` of the monotonic clock, for a job that was read after subscribing."""
    caller.on_disconnect = subscription.wake
    while not (is_final(view) or caller.disconnected) and (left := end - time.monotonic()) > 0:
        to_deadline = max(view.record.deadline - time.time(), 0) + 0.01
        await subscription.wait(min(left, to_deadline, POLL_SECONDS))
        with suppress(StoreUnavailable):
            view = await read_job(services, view.record.job_id, view.record)
    return view


async def watch_job(services: Services, job_id: str) -> None:
    """Send the job's notices to this process too, whichever one admitted it; raises ``NotFound``."""
    if not await services.call(services.store.jobs.watch, job_id, services.completions.watcher):
        raise _no_job()


async def cancel_job(services: Services, job_id: str) -> JobView:
    """Cancel what is not final yet; a final job stays as it is. Raises ``NotFound``."""
    view = await _view(services, job_id)
    if is_final(view):
        return view
    return await _close(services, view, State.CANCELLED, Cancelled("the caller cancelled the job"))


async def _view(services: Services, job_id: str, record: JobRecord | None = None) -> JobView:
    view = await services.store.async_jobs.view(job_id, record)
    if view is None:
        raise _no_job()
    return view


def _no_job() -> NotFound:
    return NotFound("no such job, or it has expired")


async def _close(services: Services, view: JobView, state: State, error: EpdError) -> JobView:
    job_id, record = view.record.job_id, PartRecord(state=state, error=ErrorInfo.of(error))
    await services.call(services.store.jobs.close, job_id, record)
    await services.call(_leave_flights, services, view)
    return await _view(services, job_id)


def _leave_flights(services: Services, before: JobView) -> None:
    """Withdraw the open parts of a job, as it was before it was closed, from the flights that they are in.

    Where others wait on a flight that the job led, one of them starts it again. Only items whose digest is
    known are looked at. Errors are logged: the job's messages, or the flights' leases, then do it later.
    """
    try:
        successors = [
            FetchMessage.from_json(text).model_copy(update={"enqueued_at": time.time()})
            for key, part in _flights_of(services, before)
            if (text := services.store.flights.withdraw(key, before.record.job_id, part)) is not None
        ]
        if successors:
            services.publish(successors)
    except (EpdError, ValueError) as error:
        logger.warning("job %s leaves its flights later: %s", before.record.job_id, error)


def _flights_of(services: Services, before: JobView) -> Iterator[tuple[str, PartId]]:
    """Keys and parts of what was open: of each URL's download, and of embeddings whose digest is known."""
    _, model = services.config.model(before.record.model)
    cards = cards_of(model, services.store.cards)
    for item in before.record.items:
        if all(part.state in FINAL_STATES for _, part in before.parts_of(item.index)):
            continue
        if item.source.url is not None:
            yield download_key(item.source.url, item.modality), PartId(item.index, item.modality)
        digest = last_digest(item, services.store.sources)
        if digest is None:
            continue
        try:
            needs = needs_of(item, digest, model=model, cards=cards)
        except (CallerFault, EncoderNotReady):
            continue
        for wanted in filter(None, (needs.main, needs.audio)):
            part = PartId(item.index, wanted.track)
            if not _was_final(before, part):
                yield wanted.key, part


def _was_final(view: JobView, part: PartId) -> bool:
    """Whether a part had ended; one that is not known yet (a video's audio) had not."""
    return view.parts.get(str(part), PartRecord()).state in FINAL_STATES
