"""The transport's parts that need no broker: lane order, liveness, message bodies, poison messages."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.utils.json import dumps

from tasks.transport import keys
from tasks.transport.acks import JsonMessage
from tasks.transport.lanes import BULK_EVERY, lane_order
from tasks.transport.liveness import (
    HeartbeatWatch,
    ProcessMark,
    describe_own_process,
    is_process_dead,
    own_sessions,
    parse_mark,
)
from tasks.transport.poison import parse_poison


def test_urgent_lanes_come_first_and_queues_take_turns() -> None:
    assert lane_order(["a", "b"], [9, 0], turn=0) == [("a", 0), ("b", 0), ("a", 9), ("b", 9)]
    assert lane_order(["a", "b"], [9, 0], turn=1) == [("b", 0), ("a", 0), ("b", 9), ("a", 9)]


def test_bulk_comes_first_once_in_a_while() -> None:
    first = Counter(lane_order(["q"], [0, 9], turn=turn)[0] for turn in range(10 * BULK_EVERY))
    assert first == {("q", 0): 10 * (BULK_EVERY - 1), ("q", 9): 10}


@given(st.lists(st.text(min_size=1), unique=True, max_size=5), st.integers(0, 1000))
def test_every_lane_is_in_every_order_once(queues: list[str], turn: int) -> None:
    order = lane_order(queues, [0, 3, 6, 9], turn=turn)
    assert sorted(order) == sorted((queue, step) for queue in queues for step in (0, 3, 6, 9))


def watch() -> HeartbeatWatch:
    return HeartbeatWatch(limit_s=3.0, period_s=0.5)


def test_a_counter_that_stands_still_is_dead_after_the_limit() -> None:
    looks = watch()
    found = [looks.look(tick / 2, {"dead": b"7", "alive": str(tick).encode()}) for tick in range(8)]
    assert found == [[]] * 6 + [["dead"]] * 2


def test_an_expired_counter_is_silent_too() -> None:
    looks = watch()
    assert [looks.look(tick / 2, {"dead": None}) for tick in range(7)][-1] == ["dead"]


def test_an_outage_proves_nothing() -> None:
    looks = watch()
    looks.look(0.0, {"slow": b"1"})
    looks.look_failed()
    assert looks.look(60.0, {"slow": None}) == []
    assert looks.look(60.5, {"slow": b"2"}) == []


def test_a_pause_of_the_watcher_proves_nothing() -> None:
    looks = watch()
    looks.look(0.0, {"slow": b"1"})
    assert looks.look(3600.0, {"slow": b"1"}) == []


def test_a_session_seen_again_after_its_end_starts_over() -> None:
    looks = watch()
    for tick in range(6):
        looks.look(tick / 2, {"name": b"1"})
    looks.look(3.0, {})
    assert looks.look(3.5, {"name": b"1"}) == []


def test_a_living_process_is_not_gone_and_a_dead_one_is() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    own = ProcessMark.own()
    if not own.namespace:
        pytest.skip("this system has no process-id namespaces to compare")
    mark = replace(own, pid=child.pid)
    assert not own.is_gone()
    child.kill()
    child.wait(10)
    assert mark.is_gone()
    assert not replace(mark, namespace="elsewhere").is_gone()
    assert replace(own, started=own.started - 60).is_gone(), "the process id was used again"


def test_a_session_of_an_image_that_this_process_replaced_is_dead() -> None:
    own_sessions.add("mine")
    own = describe_own_process("test").encode()
    assert not is_process_dead("mine", own)
    assert is_process_dead("before-exec", own) is bool(ProcessMark.own().namespace)
    own_sessions.discard("mine")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"pid": 1}', b'{"pid": "x", "namespace": "", "started": 1}']
)
def test_an_invalid_descriptor_proves_nothing(text: bytes) -> None:
    assert parse_mark(text) is None


def test_a_poison_message_names_its_task_and_arguments() -> None:
    body = base64.b64encode(json.dumps([["item"], {"n": 1}, {}]).encode()).decode()
    raw = json.dumps(
        {"body": body, "headers": {"task": "t", "id": "i"}, "properties": {"body_encoding": "base64"}}
    ).encode()
    message = parse_poison(b"3\nfetch\x06\x169\n" + raw)
    assert (message.queue, message.deliveries, message.task, message.task_id) == ("fetch", 3, "t", "i")
    assert message.arguments() == (["item"], {"n": 1})


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"body": "x"}', b'{"body": 5, "properties": {}}'])
def test_a_broken_poison_message_has_no_arguments(raw: bytes) -> None:
    message = parse_poison(b"3\nq\n" + raw)
    assert (message.task, message.task_id, message.headers) == ("?", "?", {})
    with pytest.raises(ValueError, match=r"."):
        message.arguments()


def test_keys_lie_in_our_own_namespace() -> None:
    made = [
        keys.unacked("s"),
        keys.beat("s"),
        keys.bell("l"),
        *keys.side_lists("l"),
    ]
    assert len(set(made)) == len(made)
    assert all(key.startswith("epd:") for key in made)


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


def test_json_that_only_python_accepts_is_read() -> None:
    assert _message('[NaN, "\\ud800"]').payload[1] == "\ud800"


def test_invalid_json_is_refused_as_kombu_does() -> None:
    with pytest.raises(DecodeError):
        _message("[1,").decode()


@pytest.mark.parametrize("content_type", ["application/json", "application/x-python-serialize"])
def test_content_types_that_the_consumer_refuses_are_refused(content_type: str) -> None:
    with pytest.raises(ContentDisallowed):
        _message("[1]", content_type, accept={"application/x-yaml"}).decode()
