"""Admission over a real store: exact over two processes, quick, and without a trace where it refuses."""

from __future__ import annotations

import asyncio
import base64
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import redis
from test_api_server import CAT, Fleet, Server, wait_until

from api.encode.capacity import QueueDepth
from api.encode.plan import Plan
from api.encode.request import parse_request
from api.encode.submission import submit
from api.services import Services
from epd.contracts.errors import Overloaded, StoreUnavailable
from epd.contracts.media import BlobRef
from epd.lookup import cards_of
from epd.settings import Settings
from epd.store.admissions import Load
from epd.store.cache.async_cache import LookedUp
from epd.store.open import open_store
from epd.store.values import BlobKind

LIMIT = 10


class SmallFleet(Fleet):
    """A fleet that admits few items."""

    def __init__(self, folder: Path, store_url: str) -> None:
        super().__init__(folder, store_url)
        self.settings = Settings(
            **self.settings.model_dump(include={"blob_dir", "embedding_dir", "store_url", "store_timeout"}),
            max_queue_items=LIMIT,
            max_queue_bytes=100 << 20,
        )


@pytest.fixture
def fleet(tmp_path: Path, real_server_url: str) -> Iterator[SmallFleet]:
    with redis.Redis.from_url(f"{real_server_url}/7") as client:
        client.flushdb()
    fleet = SmallFleet(tmp_path, f"{real_server_url}/7")
    fleet.worker.go.clear()
    yield fleet
    fleet.stop()


def post(server: Server, count: int, **fields: object) -> httpx.Response:
    items = [{"type": "image", "url": f"http://media.test/{n}.png"} for n in range(count)]
    return httpx.post(f"{server.url}/v1/encode", json={"items": items, "wait": 0, **fields}, timeout=30)


def test_two_processes_share_one_bound(fleet: SmallFleet) -> None:
    servers = [fleet.serve(), fleet.serve()]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: post(servers[n % 2], 3), range(12)))
    assert sorted(answer.status_code for answer in answers) == [202] * 3 + [429] * 9
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.json()["code"], refused.json()["retryable"]) == ("overloaded", True)
    assert int(refused.headers["Retry-After"]) >= 1
    assert sum(len(message.items) for message in fleet.worker.published) == 9
    assert fleet.store.admissions.held().items == 9
    fleet.worker.go.set()
    wait_until(lambda: fleet.store.admissions.held() == Load(0, 0))
    assert post(servers[0], LIMIT).status_code == 202


def test_a_cancelled_job_makes_room_at_once(fleet: SmallFleet) -> None:
    server = fleet.serve()
    first = post(server, LIMIT)
    assert post(server, 1).status_code == 429
    assert httpx.delete(f"{server.url}{first.headers['Location']}").json()["state"] == "cancelled"
    assert post(server, 1).status_code == 202


def test_bulk_fills_three_quarters_and_interactive_the_rest(fleet: SmallFleet) -> None:
    server = fleet.serve()
    assert post(server, 7, priority="bulk").status_code == 202
    assert post(server, 1, priority="bulk").status_code == 429
    assert post(server, 3).status_code == 202
    text = httpx.get(f"{server.url}/metrics").text
    assert 'epd_inflight_items{priority="bulk"} 7.0' in text
    assert 'epd_inflight_items{priority="interactive"} 3.0' in text
    assert 'epd_inflight_bytes{priority="bulk"}' in text


def test_bytes_are_bounded_too(fleet: SmallFleet) -> None:
    server = fleet.serve()
    videos = [{"type": "video", "url": f"http://media.test/{n}.mp4"} for n in range(3)]
    ask = {"items": videos, "wait": 0}
    assert httpx.post(f"{server.url}/v1/encode", json=ask).status_code == 202
    assert httpx.post(f"{server.url}/v1/encode", json=ask).status_code == 429
    assert post(server, 2).status_code == 202


def test_a_refusal_leaves_nothing(fleet: SmallFleet) -> None:
    server = fleet.serve()
    post(server, LIMIT)
    with redis.Redis.from_url(fleet.settings.store_url) as client:
        before = sorted(client.keys())
        inline = {"type": "image", "data": base64.b64encode(b"x" * 1000).decode()}
        answer = httpx.post(f"{server.url}/v1/encode", json={"items": [inline], "wait": 0})
        assert answer.status_code == 429
        assert sorted(client.keys()) == before
    assert list(Path(fleet.settings.blob_dir).glob("[!.]*")) == []
    assert len(fleet.worker.published) == 3


def test_a_job_that_cannot_be_queued_holds_nothing(fleet: SmallFleet) -> None:
    server = fleet.serve()
    for failing in (StoreUnavailable("the broker does not answer"), RuntimeError("a bug")):
        fleet.worker.failing = failing
        assert post(server, 3).status_code in (500, 503)
        assert fleet.store.admissions.held() == Load(0, 0)


class HungBroker:
    """Answers once, then never again."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()
        self._calls = 0

    def __call__(self) -> Mapping[str, int]:
        self._calls += 1
        if self._calls > 1:
            self.asked.set()
            self.over.wait(30)
        return {"fetch": 1}


def planned(services: Services, body: bytes) -> Plan:
    request = parse_request(body)
    name, model = services.config.model(request.model)
    cards = cards_of(model, services.store.cards)
    return services.planner.plan(request, name=name, model=model, cards=cards)


async def refused(services: Services, settings: Settings) -> list[float]:
    """Seconds that each of 60 refusals takes, over a store of this loop."""
    store = open_store(settings)
    mine = replace(services, store=store, capacity=replace(services.capacity, store=store))
    body = b'{"items": [{"type": "image", "url": "http://media.test/cat.png"}]}'
    took = []
    for _ in range(60):
        began = time.perf_counter()
        with pytest.raises(Overloaded, match="at their bound"), ExitStack() as waiting:
            await submit(mine, planned(mine, body), LookedUp(), {}, waiting)
        took.append(time.perf_counter() - began)
    await store.async_cache.close()
    store.close()
    return took


def test_a_refusal_takes_less_than_5_ms_whatever_the_broker_does(fleet: SmallFleet) -> None:
    server = fleet.serve()
    post(server, LIMIT)
    hung = HungBroker()
    depth = QueueDepth(hung)
    object.__setattr__(server.services.capacity, "depth", depth)
    depth.start()
    assert hung.asked.wait(10)
    took = asyncio.run(refused(server.services, fleet.settings))
    hung.over.set()
    depth.stop()
    assert statistics.median(took) < 0.005, sorted(took)


def test_a_broker_that_is_down_is_said_at_once(fleet: SmallFleet) -> None:
    server = fleet.serve()

    def down() -> Mapping[str, int]:
        raise StoreUnavailable("no broker")

    depth = QueueDepth(down)
    object.__setattr__(server.services.capacity, "depth", depth)
    depth.start()
    wait_until(lambda: post(server, 1).status_code == 503)
    before = len(fleet.worker.published)
    began = time.monotonic()
    answer = post(server, 1)
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert time.monotonic() - began < 1
    assert len(fleet.worker.published) == before
    depth.stop()


def test_messages_that_nobody_needs_are_bounded_as_well(fleet: SmallFleet) -> None:
    server = fleet.serve()
    depth = QueueDepth(lambda: {"fetch": 15, "decode": 6})
    object.__setattr__(server.services.capacity, "depth", depth)
    depth.start()
    wait_until(lambda: post(server, 1).status_code == 429)
    depth.stop()


def test_a_full_blob_directory_refuses_downloads_before_they_are_queued(fleet: SmallFleet) -> None:
    server = fleet.serve()
    with fleet.store.blobs.create(BlobKind.RAW) as (name, file):
        file.truncate(fleet.settings.blob_bytes)
    answer = httpx.post(f"{server.url}/v1/encode", json={"items": [CAT], "wait": 0})
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
    fleet.store.blobs.free(BlobRef(name=name, nbytes=fleet.settings.blob_bytes))
    assert httpx.post(f"{server.url}/v1/encode", json={"items": [CAT], "wait": 0}).status_code == 202
