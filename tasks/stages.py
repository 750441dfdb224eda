"""The three tasks, one for each stage of an item: fetch, decode and encode.

A task parses its message, runs the work of ``tasks.flow`` and publishes the message again when store or
broker do not answer. ``epd.fetch`` needs the network and parses no media; ``epd.decode`` parses media and
needs no network. ``epd.encode`` runs in the batching pool of ``gpu_worker``; here it only goes back.

The work is imported when a task first runs, since every process that knows the tasks' names would load it
otherwise. A task returns what it did, by counter name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery.exceptions import Reject

from epd.contracts.errors import StoreUnavailable
from epd.contracts.messages import DecodeMessage, EncodeMessage, Envelope, FetchMessage
from epd.telemetry.counters import Count
from epd.telemetry.tracing import span
from tasks.celery import app
from tasks.process import count
from tasks.transport.keys import DELIVERIES

logger = logging.getLogger(__name__)

#: Seconds until a message that could not be handled starts again.
PAUSE = 2.0

#: Tries to publish a message again. A rejected delivery counts as one that killed its worker, so the broker
#: first gets a minute to recover.
_TRIES = 30


@app.task(name="epd.fetch", bind=True)
def fetch(self: Any, document: dict[str, Any]) -> dict[str, float]:
    """Fetch the items of a chunk.

    A chunk that was in a worker when it died is split into single items, so that an item that kills its
    worker takes no other with it.
    """
    from tasks.flow.fetch import fetch_chunk
    from tasks.flow.item import single_items
    from tasks.worker.media import process_work

    message = FetchMessage.model_validate(document)
    work = process_work()
    context = work.context
    with counted(Count.FETCH_FAILURES) as tally:
        try:
            if len(message.items) > 1 and self.request.get(DELIVERIES, 0) > 0:
                context.publisher.fetch(single_items(message))
                return {}
            with span("epd.fetch", message.trace, job_id=message.job_id, items=len(message.items)) as carrier:
                tally.update(fetch_chunk(context, message.model_copy(update={"trace": carrier}), work))
        except StoreUnavailable as error:
            again = partial(_publish_again, context.publisher.fetch, message)
            tally.update(redo_later(again, error))
    return tally


@app.task(name="epd.decode")
def decode(document: dict[str, Any]) -> dict[str, float]:
    """Decode an item."""
    from tasks.worker.media import process_work

    message = DecodeMessage.model_validate(document)
    work = process_work()
    with counted(Count.DECODE_FAILURES) as tally:
        try:
            tally.update(work.decode(message).result())
        except (CancelledError, StoreUnavailable) as error:
            again = partial(_publish_again, work.context.publisher.decode, message)
            tally.update(redo_later(again, error))
    return tally


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
    return redo_later(partial(_publish_again, publish_encode, message), error)


@contextmanager
def counted(failure: Count) -> Iterator[dict[str, float]]:
    """Add what a task did, which the block writes into the given tally, to the totals of this process.

    A task that raises counts as one ``failure``, unless its message goes back.
    """
    tally: dict[str, float] = {}
    try:
        yield tally
    except Reject:
        raise
    except BaseException:
        count({failure.value: 1})
        raise
    finally:
        count(tally)


def _publish_again(publish: Callable[..., None], message: Envelope, pause: float) -> None:
    publish([message], countdown=pause)


def redo_later(republish: Callable[[float], None], reason: Exception) -> dict[str, float]:
    """Publish the message again, to start ``PAUSE`` seconds later, so that this delivery can be acked.

    Args:
        republish: puts the message on its queue, with a countdown in seconds.
        reason: why the message was not handled, for the log.

    Returns:
        What to count.

    Raises:
        Reject: the broker does not take the message, so this delivery goes back to its queue unacked.
    """
    logger.warning("message postponed: %s", str(reason) or "the worker stops")
    for _ in range(_TRIES):
        try:
            republish(PAUSE)
        except StoreUnavailable as error:
            reason = error
            time.sleep(PAUSE)
        else:
            return {Count.RETRIED_ITEMS.value: 1}
    raise Reject(str(reason), requeue=True)
