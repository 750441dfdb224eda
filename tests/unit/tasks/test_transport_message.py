"""The quick reader of message bodies agrees with kombu's own, and leaves it what it does not know."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.utils.json import dumps

from tasks.transport.acks import JsonMessage


class _Carrier:
    """The only part of a channel that a message asks for."""

    def decode_body(self, body: str, encoding: str) -> bytes:
        return base64.b64decode(body)


def _message(body: str, content_type: str = "application/json", accept: set[str] | None = None) -> Any:
    payload = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-type": content_type,
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"delivery_tag": "1", "body_encoding": "base64", "delivery_info": {}},
    }
    return JsonMessage(payload, channel=_Carrier(), accept=accept)


@pytest.mark.parametrize(
    "value", [[[{"a": 1.5, "b": None}], {}, {"chain": None}], ["\u00f6", "\U0001f600"], {"x": []}]
)
def test_plain_json_is_read(value: Any) -> None:
    assert _message(json.dumps(value)).payload == value


def test_types_that_kombu_marks_are_kept() -> None:
    value = {"id": uuid.UUID(int=7)}
    assert _message(dumps(value)).payload == value


def test_what_only_python_reads_is_read() -> None:
    assert _message('[NaN, "\\ud800"]').payload[1] == "\ud800"


def test_no_json_is_refused_as_kombu_does() -> None:
    with pytest.raises(DecodeError):
        _message("[1,").decode()


@pytest.mark.parametrize("content_type", ["application/json", "application/x-python-serialize"])
def test_what_the_consumer_does_not_accept_is_refused(content_type: str) -> None:
    with pytest.raises(ContentDisallowed):
        _message("[1]", content_type, accept={"application/x-yaml"}).decode()
