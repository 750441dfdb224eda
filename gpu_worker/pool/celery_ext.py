"""Celery's request for an encode message, without two ways of Celery's that cost time in each of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
from celery import bootsteps
from celery.worker.consumer.events import Events
from celery.worker.request import Request
from kombu.serialization import register, register_json
from kombu.utils.json import dumps


class EncodeRequest(Request):
    """A request that reads its times quickly.

    Celery looks its time zone up through all of its settings, though only an ``expires`` without a zone
    needs it and Celery's publishers write UTC; and it reads ISO times with a general parser.
    """

    _tzlocal = UTC

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, maybe_iso8601=parse_time, **fields)


def parse_time(text: Any) -> datetime | None:
    """A time in ISO 8601 (``datetime.fromisoformat``); a time or None goes through as it is.

    Raises:
        ValueError, TypeError: it is no such time, which Celery answers by refusing the message.
    """
    return text if text is None or isinstance(text, datetime) else datetime.fromisoformat(text)


#: Task events of one broker message at most; Celery's own figure is 24, which is eight tasks.
EVENTS_A_MESSAGE = 192

#: Seconds for which an event may wait for company.
PATIENCE = 0.1

#: The name of kombu's registry for events that orjson writes; who reads them sees JSON as ever.
SERIALIZER = "epd-events"


def event_text(events: Any) -> str:
    """JSON of events by orjson, a tenth of what kombu's own writer takes; what it refuses, kombu writes."""
    try:
        return orjson.dumps(events, option=orjson.OPT_PASSTHROUGH_DATETIME).decode()
    except TypeError:
        return str(dumps(events))


register(SERIALIZER, event_text, None, content_type="application/json", content_encoding="utf-8")
register_json()  # the content type keeps its usual name and reader


class EventBatches(bootsteps.StartStopStep):
    """A step of Celery's consumer, taken at each connection after the event dispatcher was made."""

    requires = (Events,)

    def start(self, consumer: Any) -> None:
        """Have the new dispatcher gather more."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = EVENTS_A_MESSAGE
        dispatcher.serializer = SERIALIZER
        if consumer.hub is not None:
            dispatcher.on_send_buffered = LateFlush(consumer.hub, dispatcher)

    def stop(self, consumer: Any) -> None:
        """Nothing to undo: the dispatcher ends with its connection."""


class LateFlush:
    """Called by the dispatcher, on the hub's thread, for each event that it has put aside."""

    def __init__(self, hub: Any, dispatcher: Any) -> None:
        self._hub = hub
        self._dispatcher = dispatcher
        self._is_due = False

    def __call__(self) -> None:
        """See that it is sent within ``PATIENCE``."""
        if not self._is_due:
            self._is_due = True
            self._hub.call_later(PATIENCE, self._flush)

    def _flush(self) -> None:
        self._is_due = False
        self._dispatcher.flush()
