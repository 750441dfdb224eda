"""The task ``epd.fetch``: one chunk of items of a job. Needs the network, parses no media.

What it runs is imported on its first run: every process that knows the task's name would else load it.
"""

from __future__ import annotations

from typing import Any

from epd.contracts.errors import StoreUnavailable
from epd.contracts.messages import FetchMessage
from epd.telemetry.tracing import span
from tasks.broker_keys import DELIVERIES
from tasks.celery import app


@app.task(name="epd.fetch", Request="tasks.requests:CountedRequest", bind=True)
def fetch(self: Any, document: dict[str, Any]) -> dict[str, float]:
    """Fetch a chunk; returns what is to be counted.

    A chunk that was in a worker which died is taken apart, so that the item which may have killed it
    meets its end alone.
    """
    from tasks.flow.fetch import fetch_chunk
    from tasks.flow.item import single_items
    from tasks.process import download_executor, process_context
    from tasks.redo import redo_later

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
