"""Publishing the pipeline's messages: one push a call, shared with other threads, a bounded number of tries.

A message is one task whose only argument is the message as a JSON object, so that Flower shows it in
readable form. Task ids name job, stage, item and attempt, so that all log lines of a job share a prefix. A
few random digits distinguish two messages for one item that are queued at the same time.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

import redis
from celery.utils.nodenames import anon_nodename
from celery.utils.time import utcoffset
from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time
from redis.exceptions import RedisError

from epd.contracts.errors import StoreUnavailable
from epd.contracts.messages import DecodeMessage, EncodeMessage, Envelope, FetchMessage
from tasks.celery import app
from tasks.envelope import EVENT_EXCHANGE, EVENTS_KEY, OutgoingTask, Sender, outgoing_event, outgoing_task
from tasks.queues import DECODE, ENCODE, FETCH
from tasks.transport.keys import fanout_topic
from tasks.transport.push import LanePusher

logger = logging.getLogger(__name__)

#: Seconds after which a call tries no more. The trip that runs then has the time limits of the connection.
TRY_SECONDS = 20.0

#: Task-sent events are sent this many seconds after the first one, in messages of so many, and the oldest are
#: dropped while the broker does not take them.
EVENT_DELAY, EVENTS_PER_MESSAGE, MOST_EVENTS = 0.1, 192, 4096

_BROKER_ERRORS = (OperationalError, RedisError, OSError)


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


def _publish(stage: str, messages: Sequence[Envelope], countdown: float = 0.0) -> None:
    if not messages:
        return
    policy = app.conf.task_publish_retry_policy
    end = time.monotonic() + TRY_SECONDS
    try:
        retry_over_time(
            _send,
            _BROKER_ERRORS,
            args=(stage, messages, countdown, end),
            max_retries=policy["max_retries"],
            interval_start=policy["interval_start"],
            interval_step=policy["interval_step"],
            interval_max=policy["interval_max"],
            timeout=TRY_SECONDS,
        )
    except _BROKER_ERRORS as error:
        raise StoreUnavailable(f"the broker did not take {len(messages)} {stage} messages") from error


def _send(stage: str, messages: Sequence[Envelope], countdown: float, end: float) -> None:
    now = time.time()
    line, parent = _line, app.current_worker_task
    sender = Sender(line.origin, app.thread_oid, parent.request.id if parent else None)
    tasks = [
        outgoing_task(stage, message, task_id(stage, message), sender, now=now, countdown=countdown)
        for message in messages
    ]
    line.pusher.push([(task.lane, task.raw) for task in tasks], within=max(0.0, end - time.monotonic()))
    if app.conf.task_send_sent_event:
        line.sent.add(tasks)


class SentEvents:
    """Sends task-sent events from a thread of its own, so that publishing never waits for them.

    They are hints for Flower and ``celery events``: what the broker does not take is dropped.
    """

    def __init__(self, pusher: LanePusher, hostname: str) -> None:
        self._pusher = pusher
        self._hostname = hostname
        self._pid = os.getpid()
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._due = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def add(self, tasks: Iterable[OutgoingTask]) -> None:
        """Send the events of published tasks soon."""
        self._events.extend(task.event for task in tasks)
        if not self._due.is_set():
            self._due.set()
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="epd-sent-events", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while self._due.wait():
            time.sleep(EVENT_DELAY)
            self._due.clear()
            try:
                self._flush()
            except (RedisError, OSError) as error:
                logger.debug("task-sent events were dropped: %s", error)

    def _flush(self) -> None:
        client = self._pusher.client
        assert client is not None, "a task was published before its event"
        topic = fanout_topic(client.get_connection_kwargs()["db"], EVENT_EXCHANGE, EVENTS_KEY)
        clock = app.clock.forward()
        common = {"hostname": self._hostname, "pid": self._pid, "utcoffset": utcoffset(), "clock": clock}
        while self._events:
            size = min(len(self._events), EVENTS_PER_MESSAGE)
            events = [self._events.popleft() | common for _ in range(size)]
            client.publish(topic, outgoing_event(events, self._hostname))


def _connect() -> redis.Redis:
    """A client for the broker, made by a channel, since kombu is what reads the broker's URL."""
    with app.connection_for_write() as connection:
        channel = connection.transport.create_channel(connection.transport)
        try:
            return cast("redis.Redis", channel.own_client())
        finally:
            channel.close()


class _Line:
    """What this process publishes with; it connects when it is used."""

    def __init__(self) -> None:
        self.origin = anon_nodename()
        self.pusher = LanePusher(_connect)
        self.sent = SentEvents(self.pusher, self.origin)


_line = _Line()


def _forget_after_fork() -> None:
    """A child has neither its parent's threads nor the right to its connection."""
    global _line  # noqa: PLW0603
    _line = _Line()


os.register_at_fork(after_in_child=_forget_after_fork)
