"""A task as it travels: a message of Celery's protocol 2 in kombu's envelope, and its task-sent event.

The bytes are written here and not by Celery, which takes ten times as long. A test compares both, field by
field.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from kombu.utils.json import dumps

from epd.contracts.messages import Envelope
from tasks.queues import ENCODE, PRIORITY_STEPS
from tasks.transport import keys

#: Seconds after its deadline at which Celery drops an encode message; the pool then ends its part
#: (``task_revoked``). Messages to fetch and decode have no such limit: Celery would drop them without freeing
#: their bytes and flights, so their tasks check the deadline themselves.
EXPIRY_GRACE = 60.0

#: The header that says when a message was published, in Unix seconds.
ENQUEUED_AT = "epd_enqueued_at"

#: The exchange and the routing key of several task events in one message.
EVENT_EXCHANGE, EVENTS_KEY = "celeryev", "task.multi"

#: Most characters of a task's argument that events and Flower show, as with Celery.
_SHOWN = 1024

_PERSISTENT, _TRANSIENT = 2, 1

#: Headers that are the same in each of our tasks.
_HEADERS: dict[str, Any] = {
    "lang": "py",
    "shadow": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "kwargsrepr": "{}",
    "ignore_result": True,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}


@dataclass(frozen=True, slots=True)
class Sender:
    """Who publishes: this process, its Celery id for replies, and the task that it runs, if any."""

    origin: str
    reply_to: str
    parent_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutgoingTask:
    """One task to publish: its lane, its bytes, and the fields of its task-sent event."""

    lane: str
    raw: bytes
    event: dict[str, Any]


def outgoing_task(
    stage: str, message: Envelope, task_id: str, sender: Sender, *, now: float, countdown: float = 0.0
) -> OutgoingTask:
    """Write a task whose only argument is ``message``.

    Args:
        stage: the name of the queue; the task is ``epd.<stage>``.
        message: the argument.
        task_id: Celery's id of the task.
        sender: who publishes it.
        now: Unix seconds.
        countdown: seconds until the task starts.
    """
    text = message.to_json()
    lifetime = max(1.0, message.deadline - now + EXPIRY_GRACE) if stage == ENCODE else None
    facts = {
        "root_id": message.job_id,
        "parent_id": sender.parent_id,
        "eta": _iso_time(now + countdown) if countdown else None,
        "expires": _iso_time(now + lifetime) if lifetime is not None else None,
    }
    step = PRIORITY_STEPS[message.priority]
    shown = f"({text},)" if len(text) < _SHOWN else f"({text[:_SHOWN]}...,)"
    headers = {
        **_HEADERS, **facts, "task": f"epd.{stage}", "id": task_id, "argsrepr": shown,
        "origin": sender.origin, **message.trace, ENQUEUED_AT: now,
    }  # fmt: skip
    properties = {
        "correlation_id": task_id,
        "reply_to": sender.reply_to,
        "delivery_mode": _PERSISTENT,
        "delivery_info": {"exchange": "", "routing_key": stage},
        "priority": step,
        "body_encoding": "utf-8",
        "delivery_tag": task_id,
    }
    if lifetime is not None:
        properties["expiration"] = str(int(lifetime * 1000))
    body = f'[[{text}],{{}},{{"callbacks":null,"errbacks":null,"chain":null,"chord":null}}]'
    event = {
        "type": "task-sent", "uuid": task_id, "name": f"epd.{stage}", "args": shown, "kwargs": "{}",
        "retries": 0, "queue": stage, "exchange": "", "routing_key": stage, "timestamp": now, **facts,
    }  # fmt: skip
    return OutgoingTask(keys.lane(stage, step), _envelope(body, headers, properties), event)


def outgoing_event(event: Any, hostname: str, routing_key: str = EVENTS_KEY) -> bytes:
    """Write an event, or a list of task events, as one message for the exchange of events.

    Args:
        event: what Celery's dispatcher sends.
        hostname: who sends it.
        routing_key: ``task.multi`` for a list of task events.
    """
    properties = {
        "delivery_mode": _TRANSIENT,
        "delivery_info": {"exchange": EVENT_EXCHANGE, "routing_key": routing_key},
        "priority": 0,
        "body_encoding": "utf-8",
        "delivery_tag": secrets.token_hex(8),
    }
    return _envelope(_event_text(event), {"hostname": hostname}, properties)


def _event_text(event: Any) -> str:
    """JSON by orjson; kombu writes what orjson refuses, as the arguments of a foreign task."""
    try:
        return orjson.dumps(event, option=orjson.OPT_PASSTHROUGH_DATETIME).decode()
    except TypeError:
        return str(dumps(event))


def _envelope(body: str, headers: dict[str, Any], properties: dict[str, Any]) -> bytes:
    return orjson.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
