"""Ready messages: what a publisher would have put on a queue, made beforehand.

Making them is no part of the measured time.
The form is kombu's for Redis (a JSON object with a base64 body) around Celery's message protocol 2.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any


def ready_message(task: str, queue: str, document: Mapping[str, Any], *, expires: str | None = None) -> bytes:
    """One task with one positional argument, as it lies in the list of its queue.

    ``expires`` is an ISO time, as our publisher sets one.
    """
    task_id = uuid.uuid4().hex
    body = json.dumps([[document], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    envelope = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _headers(task, task_id, expires),
        "properties": {
            "correlation_id": task_id,
            "reply_to": uuid.uuid4().hex,
            "delivery_mode": 2,
            "delivery_info": {"exchange": queue, "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": uuid.uuid4().hex,
        },
    }
    return json.dumps(envelope).encode()


def _headers(task: str, task_id: str, expires: str | None) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("shadow", "eta", "group", "group_index", "parent_id", "stamped_headers", "replaced_task_nesting")
    )
    return empty | {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        "expires": expires,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "(...)",
        "kwargsrepr": "{}",
        "origin": "bench",
        "ignore_result": True,
        "stamps": {},
        "epd_enqueued_at": time.time(),
    }
