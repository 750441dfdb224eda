"""Our task messages and their task-sent events are those that Celery makes of the same input."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import redis
from redis.client import PubSub

from epd.contracts.job import Priority
from epd.contracts.media import BlobRef, Item, Modality, RawImage, Source
from epd.contracts.messages import DecodeMessage, EncodeMessage, Envelope, FetchMessage, Wanted
from tasks import publish
from tasks.celery import app
from tasks.envelope import ENQUEUED_AT, EXPIRY_GRACE
from tasks.queue_depth import oldest_of
from tasks.queues import PRIORITY_STEPS
from tasks.transport.keys import lane
from tasks.transport.poison import PoisonMessage
from tests.store_kit import Stores
from tests.unit.tasks.publish_kit import event_channel, publishing_to

NOW = time.time()
ITEM = Item(index=3, modality=Modality.IMAGE, source=Source(url="http://catalogue.test/\u00e9%22.jpg"))
COMMON: dict[str, Any] = {
    "job_id": "a" * 32, "model": "m", "deadline": NOW + 3600, "enqueued_at": NOW, "priority": Priority.BULK,
    "trace": {"traceparent": "00-1"},
}  # fmt: skip
BLOB = BlobRef(name="s-1", nbytes=12)
MESSAGES: dict[str, Envelope] = {
    "fetch": FetchMessage(**COMMON, items=(ITEM,)),
    "decode": DecodeMessage(**COMMON, item=ITEM, digest="d", blob=BLOB, timings={"fetch": 0.25}),
    "encode": EncodeMessage(
        **COMMON,
        item=ITEM,
        digest="d",
        wanted=Wanted(key="k", track=Modality.IMAGE, encoder="e", encoder_identity="i"),
        raw=RawImage(blob=BLOB, height=2, width=2, original_size=(2, 2)),
    ),
}

#: What names a moment or a delivery, or is compared apart.
_OWN_HEADERS = {"eta", "expires", "argsrepr", ENQUEUED_AT}
_OWN_PROPERTIES = {"body_encoding", "delivery_tag", "expiration"}
_OWN_FIELDS = {"eta", "expires", "args", "timestamp", "clock", "pid", "hostname"}


@pytest.fixture
def client(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A client for the broker that this process publishes to."""
    monkeypatch.setattr(publish, "task_id", lambda stage, message: "t-1")
    with publishing_to(stores.url), redis.Redis.from_url(stores.url, decode_responses=True) as client:
        yield client


def celerys(client: redis.Redis, url: str, stage: str, countdown: float) -> tuple[Any, Any]:
    """The envelope and the task-sent event of Celery's own publisher."""
    message = MESSAGES[stage]
    expires = {"expires": message.deadline - time.time() + EXPIRY_GRACE} if stage == "encode" else {}
    with app.connection_for_write(url) as connection, event_channel(client) as events:
        app.send_task(
            f"epd.{stage}", args=(message.to_document(),), countdown=countdown or None, retry=False,
            producer=app.amqp.Producer(connection), ignore_result=True, add_to_parent=False, task_id="t-1",
            root_id=message.job_id, priority=PRIORITY_STEPS[message.priority],
            headers={**message.trace, ENQUEUED_AT: time.time()}, **expires,
        )  # fmt: skip
        return taken(client, stage), sent_event(events)


def ours(client: redis.Redis, stage: str, countdown: float) -> tuple[Any, Any]:
    """The same from our publisher."""
    with event_channel(client) as events:
        publish._publish(stage, [MESSAGES[stage]], countdown)
        return taken(client, stage), sent_event(events)


def taken(client: redis.Redis, stage: str) -> Any:
    raw = client.rpop(lane(stage, PRIORITY_STEPS[Priority.BULK]))
    assert isinstance(raw, str)
    return json.loads(raw)


def sent_event(events: PubSub) -> Any:
    message = events.get_message(timeout=5)
    assert message is not None
    envelope = json.loads(message["data"])
    event = json.loads(body_text(envelope))
    return event[0] if isinstance(event, list) else event


def body_text(envelope: Any) -> str:
    if envelope["properties"]["body_encoding"] == "base64":
        return base64.b64decode(envelope["body"]).decode()
    return str(envelope["body"])


def without(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def moment(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("stage", list(MESSAGES))
@pytest.mark.parametrize("countdown", [0.0, 7.5])
def test_a_task_and_its_event_are_those_of_celery(
    client: redis.Redis, stores: Stores, stage: str, countdown: float
) -> None:
    theirs, their_event = celerys(client, stores.url, stage, countdown)
    own, own_event = ours(client, stage, countdown)
    assert theirs.keys() == own.keys()
    assert json.loads(body_text(theirs)) == json.loads(body_text(own))
    assert theirs["headers"].keys() == own["headers"].keys()
    assert without(theirs["headers"], _OWN_HEADERS) == without(own["headers"], _OWN_HEADERS)
    assert theirs["properties"].keys() == own["properties"].keys()
    assert without(theirs["properties"], _OWN_PROPERTIES) == without(own["properties"], _OWN_PROPERTIES)
    for name in ("eta", "expires"):
        expected, given = moment(theirs["headers"][name]), moment(own["headers"][name])
        assert given == (None if expected is None else pytest.approx(expected, abs=5))
    assert their_event.keys() == own_event.keys()
    assert without(their_event, _OWN_FIELDS) == without(own_event, _OWN_FIELDS)
    assert own_event["args"] == own["headers"]["argsrepr"]


def test_the_argument_is_shown_up_to_a_limit(client: redis.Redis) -> None:
    own, _ = ours(client, "fetch", 0.0)
    assert json.loads(own["headers"]["argsrepr"][1:-2]) == MESSAGES["fetch"].to_document()
    items = tuple(ITEM.model_copy(update={"index": index}) for index in range(64))
    publish.publish_fetch([FetchMessage(**COMMON, items=items)])
    shown = taken(client, "fetch")["headers"]["argsrepr"]
    assert 1000 < len(shown) < 1100
    assert shown.endswith("...,)")


def test_a_message_for_encode_alone_expires(client: redis.Redis) -> None:
    """Celery would drop an expired fetch or decode message, and leave its bytes and flights."""
    expires = {stage: ours(client, stage, 0.0)[0]["headers"]["expires"] for stage in MESSAGES}
    assert (expires["fetch"], expires["decode"]) == (None, None)
    assert moment(expires["encode"]) == pytest.approx(NOW + 3600 + EXPIRY_GRACE, abs=1)


def test_what_reads_queued_messages_reads_ours(client: redis.Redis) -> None:
    before = time.time()
    publish._publish("decode", [MESSAGES["decode"]])
    raw = str(client.rpop(lane("decode", PRIORITY_STEPS[Priority.BULK]))).encode()
    published = oldest_of([raw])
    assert published is not None
    assert before <= published <= time.time()
    poison = PoisonMessage(queue="decode", deliveries=3, raw=raw)
    assert (poison.task, poison.task_id) == ("epd.decode", "t-1")
    assert poison.arguments() == ([MESSAGES["decode"].to_document()], {})
