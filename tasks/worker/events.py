"""What a worker says about each task: events in large batches, and no log line unless it fails.

Celery imports this module in every worker (``imports``).
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import redis
from celery import bootsteps
from celery.signals import after_setup_logger, worker_init
from celery.worker.consumer.events import Events

from tasks.envelope import EVENT_EXCHANGE, outgoing_event
from tasks.transport.keys import fanout_topic

#: The most task events in one broker message. Celery's default of 24 is the events of eight tasks.
EVENTS_PER_MESSAGE = 192

#: Seconds that an event may wait for others to be sent with it.
FLUSH_DELAY = 0.1

#: Celery's loggers of "received" and "succeeded".
_TASK_LOGGERS = ("celery.worker.strategy", "celery.app.trace")


@worker_init.connect
def install(sender: Any, **_: Any) -> None:
    """Add the step to this worker's consumer, which is made later."""
    sender.app.steps["consumer"].add(EventBatches)


@after_setup_logger.connect
def keep_quiet_about_tasks(loglevel: int, **_: Any) -> None:
    """Let Celery write a line for each task at DEBUG only; below that, those of failures remain."""
    for name in _TASK_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING if loglevel > logging.DEBUG else logging.NOTSET)


class EventBatches(bootsteps.StartStopStep):
    """A step of Celery's consumer that sends task events in larger batches and writes them faster.

    Celery starts it at each connection, after it has made the event dispatcher.
    """

    requires = (Events,)

    def start(self, consumer: Any) -> None:
        """Set up the new connection's dispatcher."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = EVENTS_PER_MESSAGE
        if dispatcher.enabled:
            dispatcher.producer = EventProducer(dispatcher.connection.default_channel.own_client())
        if consumer.hub is not None:
            dispatcher.on_send_buffered = DelayedFlush(consumer.hub, dispatcher)

    def stop(self, consumer: Any) -> None:
        """Nothing to undo: the dispatcher ends with its connection."""


class EventProducer:
    """Takes the place of kombu's producer in a dispatcher, which needs ten times as long for an event."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._database = client.get_connection_kwargs()["db"]

    def publish(self, event: Any, *, routing_key: str, headers: dict[str, str], **_: Any) -> None:
        """Send an event or a list of events; raises ``redis.RedisError``, and the dispatcher keeps it."""
        topic = fanout_topic(self._database, EVENT_EXCHANGE, routing_key)
        self._client.publish(topic, outgoing_event(event, headers["hostname"], routing_key))


class DelayedFlush:
    """Flushes events within ``FLUSH_DELAY``, on the hub's thread, which makes it.

    The dispatcher calls it for each event: on the hub's thread, or on a task's in a pool of threads.
    """

    def __init__(self, hub: Any, dispatcher: Any) -> None:
        self._hub = hub
        self._hub_thread = threading.get_ident()
        self._dispatcher = dispatcher
        self._is_due = False

    def __call__(self) -> None:
        """Schedule a flush unless one is due already."""
        if self._is_due:
            return
        self._is_due = True
        if threading.get_ident() == self._hub_thread:
            self._schedule()
        else:
            self._hub.call_soon(self._schedule)  # timers belong to the hub's thread

    def _schedule(self) -> None:
        self._hub.call_later(FLUSH_DELAY, self._flush)

    def _flush(self) -> None:
        self._is_due = False
        self._dispatcher.flush()
