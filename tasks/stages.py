"""The three tasks, one for each stage of an item: fetch, decode and encode.

A task parses its message, runs the work of ``tasks.flow`` and publishes the message again when store or
broker do not answer. ``epd.fetch`` needs the network and parses no media; ``epd.decode`` parses media and
needs no network. ``epd.encode`` runs in the batching pool of ``gpu_worker``; here it only goes back.

The work is imported when a task first runs, since every process that knows the tasks' names would load it
otherwise. The results are counts by counter name, for ``tasks.worker.counters``.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded

from epd.contracts.errors import DecodeTimeout, StoreUnavailable
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.telemetry.counters import Count
from epd.telemetry.tracing import span
from tasks.celery import app
from tasks.transport.keys import DELIVERIES

logger = logging.getLogger(__name__)


@app.task(name="epd.fetch", Request="tasks.failures:CountedRequest", bind=True)
def fetch(self: Any, document: dict[str, Any]) -> dict[str, float]:
    """Fetch the items of a chunk.

    A chunk that was in a worker when it died is split into single items, so that an item that kills its
    worker takes no other with it.
    """
    from tasks.failures import redo_later
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


@app.task(name="epd.decode", Request="tasks.failures:DecodeRequest")
def decode(document: dict[str, Any]) -> dict[str, float]:
    """Decode an item."""
    from tasks.failures import fail_decode, redo_later
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
    from tasks.failures import redo_later
    from tasks.publish import publish_encode

    logger.error("epd.encode reached a worker without the batching pool; start `python -m gpu_worker`")
    message = EncodeMessage.model_validate(document)
    error = StoreUnavailable("this worker has no batching pool")
    return redo_later(lambda pause: publish_encode([message], countdown=pause), error)
