"""The worker process: a warm encode service, and a Celery worker that feeds it until a signal ends it.

``gpu_worker.__main__`` imports this module late, since it loads torch and Celery.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Sequence
from typing import Any

import orjson
from celery import bootsteps
from celery.utils.nodenames import default_nodename, host_format
from celery.worker.consumer.events import Events
from kombu.serialization import register, register_json
from kombu.utils.json import dumps

from gpu_worker.options import Options
from gpu_worker.pool.batch_pool import BatchPool
from gpu_worker.service.encode_service import EncodeService, open_service
from tasks.celery import app
from tasks.process import process_context
from tasks.queues import ENCODE
from tasks.worker.shutdown import COLD_STOP

#: The most task events in one broker message. Celery's default of 24 is the events of eight tasks.
EVENTS_PER_MESSAGE = 192

#: Seconds that an event may wait for others to be sent with it.
FLUSH_DELAY = 0.1

#: The name under which kombu knows the serializer of events. Consumers see ordinary JSON.
EVENT_SERIALIZER = "epd-events"


def run_worker(options: Options) -> None:
    """Load the encoders and warm them up, then consume until a signal ends the worker.

    Raises:
        SettingsError, EncodeFailed, StoreUnavailable: as ``open_service``.
    """
    node = node_name(options.node)
    service = open_service(process_context(), name=node, device=options.device, share=options.share)
    consume(service, node, options.celery)


def node_name(template: str) -> str:
    """Fill in the placeholders of a Celery node name: ``gpu@%h`` gives ``gpu@host``."""
    return str(host_format(default_nodename(template)))


def consume(service: EncodeService, node: str, celery: Sequence[str] = ()) -> None:
    """Feed a warm service from the encode queue; ``celery`` are further options of ``celery worker``."""
    settings = process_context().settings
    BatchPool.service = service
    own = ["worker", "-P", "custom", "-Q", ENCODE, "-n", node, "-c", "1", "-l", settings.log_level]
    own += ["--prefetch-multiplier", str(settings.worker_prefetch), "--without-gossip", "--without-mingle"]
    app.steps["consumer"].add(EventBatches)
    # Encoders, torch and Celery live as long as the process: without this, each full collection walks them.
    gc.collect()
    gc.freeze()
    try:
        app.worker_main([*own, *celery])
    finally:
        if service.engine.is_running:
            # A cold shutdown left it running. A thread inside torch would abort the interpreter's own exit.
            logging.shutdown()
            os._exit(COLD_STOP)


class EventBatches(bootsteps.StartStopStep):
    """A step of Celery's consumer that sends task events in larger batches and writes them faster.

    Celery starts it at each connection, after it has made the event dispatcher.
    """

    requires = (Events,)

    def start(self, consumer: Any) -> None:
        """Set up the new connection's dispatcher."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = EVENTS_PER_MESSAGE
        dispatcher.serializer = EVENT_SERIALIZER
        if consumer.hub is not None:
            dispatcher.on_send_buffered = DelayedFlush(consumer.hub, dispatcher)

    def stop(self, consumer: Any) -> None:
        """Nothing to undo: the dispatcher ends with its connection."""


class DelayedFlush:
    """Flushes events within ``FLUSH_DELAY``. The dispatcher calls it, on the hub's thread, for each event."""

    def __init__(self, hub: Any, dispatcher: Any) -> None:
        self._hub = hub
        self._dispatcher = dispatcher
        self._is_due = False

    def __call__(self) -> None:
        """Schedule a flush unless one is due already."""
        if not self._is_due:
            self._is_due = True
            self._hub.call_later(FLUSH_DELAY, self._flush)

    def _flush(self) -> None:
        self._is_due = False
        self._dispatcher.flush()


def event_text(events: Any) -> str:
    """Write events as JSON with orjson, in a tenth of kombu's time; kombu writes what orjson refuses."""
    try:
        return orjson.dumps(events, option=orjson.OPT_PASSTHROUGH_DATETIME).decode()
    except TypeError:
        return str(dumps(events))


register(EVENT_SERIALIZER, event_text, None, content_type="application/json", content_encoding="utf-8")
register_json()  # gives the content type back to kombu's own name and reader
