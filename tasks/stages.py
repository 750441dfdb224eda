"""The task ``epd.fetch``: one chunk of items of a job. Needs the network, parses no media.

What it runs is imported on its first run: every process that knows the task's name would else load it.
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


@app.task(name="epd.fetch", Request="tasks.failures:CountedRequest", bind=True)
def fetch(self: Any, document: dict[str, Any]) -> dict[str, float]:
    """Fetch a chunk; returns what is to be counted.

    A chunk that was in a worker which died is taken apart, so that the item which may have killed it
    meets its end alone.
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
    except StoreUnavailable as trouble:
        return redo_later(lambda pause: context.publisher.fetch([message], countdown=pause), trouble)


@app.task(name="epd.decode", Request="tasks.failures:DecodeRequest")
def decode(document: dict[str, Any]) -> dict[str, float]:
    """Decode an item; returns what is to be counted."""
    from tasks.failures import redo_later
    from tasks.flow.decode import decode_item
    from tasks.flow.flights import give_up_decode
    from tasks.flow.item import DecodeRun
    from tasks.process import process_context

    message = DecodeMessage.model_validate(document)
    context = process_context()
    try:
        with span("epd.decode", message.trace, job_id=message.job_id, item=message.item.index) as carrier:
            tally = decode_item(context, message.model_copy(update={"trace": carrier}))
        return {str(name): amount for name, amount in tally.items() if amount}
    except SoftTimeLimitExceeded:
        run = DecodeRun(context, message, message.item)
        give_up_decode(run, DecodeTimeout("decoding took longer than its limit"))
        return {Count.DECODE_FAILURES.value: 1}
    except StoreUnavailable as trouble:
        return redo_later(lambda pause: context.publisher.decode([message], countdown=pause), trouble)


logger = logging.getLogger(__name__)


@app.task(name="epd.encode")
def encode(document: dict[str, Any]) -> dict[str, float]:
    """Give the message back: this process cannot encode.

    Raises:
        Reject: the broker did not take it back, so the delivery itself goes back unacked.
    """
    from tasks.failures import redo_later
    from tasks.publish import publish_encode

    logger.error("epd.encode reached a worker without the batching pool; start `python -m gpu_worker`")
    message = EncodeMessage.model_validate(document)
    trouble = StoreUnavailable("this worker has no batching pool")
    return redo_later(lambda pause: publish_encode([message], countdown=pause), trouble)
