"""The task ``epd.decode``: one item's bytes to raw media. Needs no network. Runs in prefork children.

What it runs is imported on its first run: every process that knows the task's name would else load it.
"""

from __future__ import annotations

from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded

from epd.contracts.errors import DecodeTimeout, StoreUnavailable
from epd.contracts.messages import DecodeMessage
from epd.telemetry.counters import Count
from epd.telemetry.tracing import span
from tasks.celery import app


@app.task(name="epd.decode", Request="tasks.requests:DecodeRequest")
def decode(document: dict[str, Any]) -> dict[str, float]:
    """Decode an item; returns what is to be counted."""
    from tasks.flow.decode import decode_item
    from tasks.flow.flights import give_up_decode
    from tasks.flow.item import DecodeRun
    from tasks.process import process_context
    from tasks.redo import redo_later

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
