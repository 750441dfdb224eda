"""Messages read by orjson, which takes a third of the time of kombu's own reader."""

from __future__ import annotations

from typing import Any

import orjson
from kombu.transport import virtual
from kombu.utils.json import loads

_JSON = "application/json"

#: kombu marks types that JSON has not, as UUIDs and times, with this member. Only its own reader knows them.
_MARK = b'"__type__"'


class JsonMessage(virtual.Message):
    """A message whose body is decoded quickly where it is plain JSON."""

    def _decode(self) -> Any:
        if self.content_type == _JSON and _JSON in (self.accept or (_JSON,)):
            body = self.body.encode() if isinstance(self.body, str) else self.body
            if isinstance(body, bytes) and _MARK not in body:
                try:
                    return orjson.loads(body)
                except orjson.JSONDecodeError:
                    pass  # perhaps NaN, which Python reads; else kombu says what is wrong
        return super()._decode()


def read_envelope(raw: bytes) -> Any:
    """What lies in a queue's list, as kombu knows it."""
    return loads(raw.decode()) if _MARK in raw else orjson.loads(raw)
