"""The three tasks, one for each stage of an item: fetch, decode and encode.

A task parses its message, runs the work of ``tasks.flow`` and publishes the message again when store or
broker do not answer. ``epd.fetch`` needs the network and parses no media; ``epd.decode`` parses media and
needs no network. ``epd.encode`` runs in the batching pool of ``gpu_worker``; here it only goes back.

The work is imported when a task first runs, since every process that knows the tasks' names would load it
otherwise. A task returns counts by counter name; the request classes add them to the totals of the worker's
main process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Reject
from celery.worker.request import Request

from epd.contracts.errors import DecodeTimeout, EpdError, StoreUnavailable
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.telemetry.counters import Count
from epd.telemetry.tracing import span
from tasks.celery import app
from tasks.process import count_crash, count_result
from tasks.transport.keys import DELIVERIES

logger = logging.getLogger(__name__)

#: Seconds until a message that could not be handled starts again.
PAUSE = 2.0

#: Tries to publish a message again. A rejected delivery counts as one that killed its worker, so the broker
#: first gets a minute to recover.
_TRIES = 30


@app.task(name="epd.fetch", Request="tasks.stages:CountedRequest", bind=True)
def fetch(self: Any, document: dict[str, Any]) -> dict[str, float]:
    """Fetch the items of a chunk.

    A chunk that was in a worker when it died is split into single items, so that an item that kills its
    worker takes no other with it.
    """
    from tasks.flow.fetch import fetch_chunk
    from tasks.flow.item import single_items
    from tasks.process import download_executor, process_context

    message = FetchMessage.model_validate(document)
    context = process_context()
    try:
        if len(message.items) > 1 and self.request.get(DELIVERIES, 0) > 0:
            context.publisher.fetch(single_items(message))
            return {}
        with span("epd.fetch", message.trace, job_id=message.job_id, items=len(message.items)) as carrier:
            traced = message.model_copy(update={"trace": carrier})
            return fetch_chunk(context, traced, download_executor())
    except StoreUnavailable as error:
        return redo_later(lambda pause: context.publisher.fetch([message], countdown=pause), error)


@app.task(name="epd.decode", Request="tasks.stages:DecodeRequest")
def decode(document: dict[str, Any]) -> dict[str, float]:
    """Decode an item."""
    from tasks.flow.context import sum_tallies
    from tasks.flow.decode import decode_item
    from tasks.process import process_context

    message = DecodeMessage.model_validate(document)
    context = process_context()
    try:
        with span("epd.decode", message.trace, job_id=message.job_id, item=message.item.index) as carrier:
            return sum_tallies([decode_item(context, message.model_copy(update={"trace": carrier}))])
    except SoftTimeLimitExceeded:
        fail_decode(message, DecodeTimeout("decoding took longer than its limit"))
        return {Count.DECODE_FAILURES.value: 1}
    except StoreUnavailable as error:
        return redo_later(lambda pause: context.publisher.decode([message], countdown=pause), error)


@app.task(name="epd.encode")
def encode(document: dict[str, Any]) -> dict[str, float]:
    """Publish the message again: this process cannot encode.

    Raises:
        Reject: the broker did not take it, so the delivery itself goes back to its queue.
    """
    from tasks.publish import publish_encode

    logger.error("epd.encode reached a worker without the batching pool; start `python -m gpu_worker`")
    message = EncodeMessage.model_validate(document)
    error = StoreUnavailable("this worker has no batching pool")
    return redo_later(lambda pause: publish_encode([message], countdown=pause), error)


class CountedRequest(Request):
    """A request whose outcome is counted."""

    def send_event(self, type: str, **fields: Any) -> Any:
        """Called for each event of the task, in every pool.

        Counting uses the event because Celery's optimised request class replaces ``on_success`` without
        calling ours; ``celeryconfig`` enables events in every worker.
        """
        if type == "task-succeeded":
            count_result(str(fields.get("result")))
        return super().send_event(type, **fields)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Called when the task has raised or its child has died. A rejected message is not a failure."""
        exception = exc_info.exception
        if not isinstance(getattr(exception, "exc", exception), Reject):
            count_crash(self.task_name)
        return super().on_failure(exc_info, *args, **kwargs)


class DecodeRequest(CountedRequest):
    """A decode whose item fails with ``decode_timeout`` when its child is killed by the hard time limit."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Called for both limits; the task handles the soft one itself."""
        super().on_timeout(soft, timeout)
        if soft:
            return
        try:
            message = DecodeMessage.model_validate(self.args[0])
            fail_decode(message, DecodeTimeout("decoding hung and was killed"))
        except (EpdError, ValueError, IndexError):
            logger.exception("task %s was killed; its item ends when the lease of its flight ends", self.id)


def fail_decode(message: DecodeMessage, error: EpdError) -> None:
    """Fail what a decode message is for, for everyone who waits for it.

    Raises:
        StoreUnavailable: the store does not answer; the call can be repeated.
    """
    from tasks.flow.flights import give_up_decode
    from tasks.flow.item import DecodeRun
    from tasks.process import process_context

    give_up_decode(DecodeRun(process_context(), message, message.item), error)


def redo_later(republish: Callable[[float], None], reason: StoreUnavailable) -> dict[str, float]:
    """Publish the message again, to start ``PAUSE`` seconds later, so that this delivery can be acked.

    Args:
        republish: puts the message on its queue, with a countdown in seconds.
        reason: why the message was not handled, for the log.

    Returns:
        What to count.

    Raises:
        Reject: the broker does not take the message, so this delivery goes back to its queue unacked.
    """
    logger.warning("message postponed: %s", reason)
    for _ in range(_TRIES):
        try:
            republish(PAUSE)
        except StoreUnavailable as error:
            reason = error
            time.sleep(PAUSE)
        else:
            return {Count.RETRIED_ITEMS.value: 1}
    raise Reject(str(reason), requeue=True)
