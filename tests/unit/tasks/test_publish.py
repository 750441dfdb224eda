"""Publishing: what the broker gets, what callers get when it fails, and task-sent events."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Priority
from epd.contracts.media import Item, Modality, Source
from epd.contracts.messages import FetchMessage
from tasks import publish
from tasks.celery import app
from tasks.transport.keys import bell, lane
from tests.store_kit import Stores
from tests.unit.tasks.publish_kit import event_channel, publishing_to


def chunk(job_id: str, priority: Priority = Priority.INTERACTIVE) -> FetchMessage:
    item = Item(index=0, modality=Modality.IMAGE, source=Source(url="http://catalogue.test/1.jpg"))
    now = time.time()
    return FetchMessage(
        job_id=job_id, model="m", priority=priority, deadline=now + 60, enqueued_at=now, items=(item,)
    )


@pytest.fixture
def client(stores: Stores) -> Iterator[redis.Redis]:
    with publishing_to(stores.url), redis.Redis.from_url(stores.url, decode_responses=True) as client:
        yield client


def jobs(client: redis.Redis, name: str = "fetch") -> list[str]:
    """The jobs of a lane's messages, in the order in which they are taken."""
    raws: Any = client.lrange(name, 0, -1)
    return [json.loads(raw)["headers"]["root_id"] for raw in reversed(raws)]


def test_messages_of_a_call_keep_their_order_and_their_lanes(client: redis.Redis) -> None:
    publish.publish_fetch([chunk("a"), chunk("b", Priority.BULK), chunk("c")])
    assert jobs(client) == ["a", "c"]
    assert jobs(client, lane("fetch", 5)) == ["b"]
    assert client.llen(bell("fetch")) == client.llen(bell(lane("fetch", 5))) == 1
    assert int(str(client.ttl(bell("fetch")))) > 0


def test_more_threads_than_any_pool_has_connections(client: redis.Redis) -> None:
    """A pool of producers used to give up on waiting threads while the broker was slow."""
    before = len(client.client_list())
    with ThreadPoolExecutor(64) as threads:
        list(threads.map(lambda number: publish.publish_fetch([chunk(str(number))]), range(300)))
    assert sorted(map(int, jobs(client))) == list(range(300))
    assert len(client.client_list()) <= before + 2, "one connection pushes, another sends events"


def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{probe.getsockname()[1]}/0"
        with publishing_to(url), pytest.raises(StoreUnavailable, match="1 fetch messages"):
            publish.publish_fetch([chunk("a")])


def test_a_lost_connection_is_made_again_within_the_call(client: redis.Redis) -> None:
    publish.publish_fetch([chunk("a")])
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    publish.publish_fetch([chunk("b")])
    assert jobs(client) == ["a", "b"]


def test_a_refused_push_is_an_error_of_the_call(client: redis.Redis) -> None:
    client.set("fetch", "not a list")
    with pytest.raises(StoreUnavailable):
        publish.publish_fetch([chunk("a")])
    client.delete("fetch")
    publish.publish_fetch([chunk("b")])
    assert jobs(client) == ["b"]


def test_a_forked_child_publishes_on_a_connection_of_its_own(client: redis.Redis) -> None:
    publish.publish_fetch([chunk("parent")])
    child = os.fork()
    if child == 0:
        publish.publish_fetch([chunk("child")])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    publish.publish_fetch([chunk("parent")])
    assert jobs(client) == ["parent", "child", "parent"]


def events_of(client: redis.Redis, messages: Sequence[FetchMessage]) -> list[list[Any]]:
    """The batches of task-sent events that come of publishing these."""
    batches = []
    with event_channel(client) as events:
        for message in messages:
            publish.publish_fetch([message])
        while (received := events.get_message(timeout=0.5)) is not None:
            batches.append(json.loads(json.loads(received["data"])["body"]))
    return batches


def test_sent_events_come_in_batches(client: redis.Redis) -> None:
    batches = events_of(client, [chunk(str(number)) for number in range(20)])
    assert [event["root_id"] for batch in batches for event in batch] == [str(number) for number in range(20)]
    assert len(batches) < 5


def test_sent_events_can_be_turned_off(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.conf, "task_send_sent_event", False)
    assert events_of(client, [chunk("a")]) == []
    assert jobs(client) == ["a"]


def test_celerys_receiver_reads_sent_events(client: redis.Redis, stores: Stores) -> None:
    seen: list[dict[str, Any]] = []
    with app.connection_for_read(stores.url) as connection:

        def keep(event: dict[str, Any]) -> None:
            seen.append(event)
            receiver.should_stop = len(seen) == 2

        receiver = app.events.Receiver(connection, handlers={"task-sent": keep})
        before = client.pubsub_numpat()
        reading = threading.Thread(target=receiver.capture, kwargs={"timeout": 5, "wakeup": False})
        reading.start()
        while reading.is_alive() and client.pubsub_numpat() == before:
            time.sleep(0.01)
        publish.publish_fetch([chunk("a"), chunk("b")])
        reading.join(10)
    assert [(event["root_id"], event["name"], event["queue"]) for event in seen] == [
        ("a", "epd.fetch", "fetch"),
        ("b", "epd.fetch", "fetch"),
    ]
