"""Publishing the pipeline's messages: one producer batch a call, with a bounded number of tries.

A message is one task whose only argument is the message as a JSON object, so that Flower shows it in
readable form. Task ids name job, stage, item and attempt, so that all log lines of a job share a prefix. A
few random digits distinguish two messages for one item that are queued at the same time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from kombu.exceptions import BatchPublishError, OperationalError
from kombu.utils.functional import retry_over_time
from redis.exceptions import RedisError

from epd.contracts.errors import StoreUnavailable
from epd.contracts.messages import DecodeMessage, EncodeMessage, Envelope, FetchMessage
from tasks.celery import app
from tasks.queues import DECODE, ENCODE, FETCH, PRIORITY_STEPS

#: Seconds after its deadline at which Celery drops an encode message; the pool then ends its part
#: (``task_revoked``). Messages to fetch and decode have no such limit: Celery would drop them without freeing
#: their bytes and flights, so their tasks check the deadline themselves.
EXPIRY_GRACE = 60.0

#: The header that says when a message was published, in Unix seconds.
ENQUEUED_AT = "epd_enqueued_at"

#: Seconds that a call waits for a free producer of the pool.
_ACQUIRE_TIMEOUT = 5.0

_BROKER_ERRORS = (OperationalError, BatchPublishError, RedisError, OSError)


def publish_fetch(messages: Sequence[FetchMessage], *, countdown: float = 0.0) -> None:
    """Put chunks on the ``fetch`` queue.

    Args:
        messages: the chunks.
        countdown: seconds until they start.

    Raises:
        StoreUnavailable: the broker did not take all of them. It may have taken some, which does no harm.
    """
    _publish(FETCH, messages, countdown)


def publish_decode(messages: Sequence[DecodeMessage], *, countdown: float = 0.0) -> None:
    """Put items on the ``decode`` queue; raises like ``publish_fetch``."""
    _publish(DECODE, messages, countdown)


def publish_encode(messages: Sequence[EncodeMessage], *, countdown: float = 0.0) -> None:
    """Put parts on the ``encode`` queue; raises like ``publish_fetch``."""
    _publish(ENCODE, messages, countdown)


def task_id(stage: str, message: Envelope) -> str:
    """``job.stage.place.attempt.random``; place is the index of the (first) item, and encode's track."""
    if isinstance(message, FetchMessage):
        place = str(message.items[0].index)
    elif isinstance(message, EncodeMessage):
        place = f"{message.item.index}-{message.wanted.track}"
    else:
        place = str(message.item.index) if isinstance(message, DecodeMessage) else "0"
    return f"{message.job_id}.{stage}.{place}.{message.attempt}.{secrets.token_hex(3)}"


def task_options(stage: str, message: Envelope, now: float) -> dict[str, Any]:
    """The options with which a task is sent: id, priority, lifetime in seconds and headers."""
    lifetime = {"expires": max(1.0, message.deadline - now + EXPIRY_GRACE)} if stage == ENCODE else {}
    return {
        "task_id": task_id(stage, message),
        "root_id": message.job_id,
        "priority": PRIORITY_STEPS[message.priority],
        **lifetime,
        "headers": {**message.trace, ENQUEUED_AT: now},
    }


def _publish(stage: str, messages: Sequence[Envelope], countdown: float = 0.0) -> None:
    if not messages:
        return
    policy = app.conf.task_publish_retry_policy
    try:
        retry_over_time(
            _send,
            _BROKER_ERRORS,
            args=(stage, messages, countdown),
            max_retries=policy["max_retries"],
            interval_start=policy["interval_start"],
            interval_step=policy["interval_step"],
            interval_max=policy["interval_max"],
        )
    except _BROKER_ERRORS as error:
        raise StoreUnavailable(f"the broker did not take {len(messages)} {stage} messages") from error


def _send(stage: str, messages: Sequence[Envelope], countdown: float) -> None:
    now = time.time()
    with app.producer_pool.acquire(block=True, timeout=_ACQUIRE_TIMEOUT) as producer, producer.batch():
        for message in messages:
            app.send_task(
                f"epd.{stage}",
                args=(message.to_document(),),
                countdown=countdown or None,
                producer=producer,
                retry=False,
                ignore_result=True,
                add_to_parent=False,
                **task_options(stage, message, now),
            )
