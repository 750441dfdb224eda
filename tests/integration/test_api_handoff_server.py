"""Handoffs through several API processes over one server, with the clients that engines use."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from test_api_server import CAT, Fleet, wait_until

from epd.client import AsyncClient, Client, HandoffRequest, Placement, split_by_offset
from epd.contracts.errors import HandoffConflict, NotFound
from epd.contracts.handoff import Handoff
from epd.contracts.responses import JobAnswer
from epd.store import keys

DOCS = Path(__file__).parents[2] / "docs" / "handoff.md"
FILM = {"type": "video", "url": "http://media.test/sound.mp4"}


@pytest.fixture
def fleet(tmp_path: Path, real_server_url: str) -> Iterator[Fleet]:
    redis.Redis.from_url(f"{real_server_url}/6").flushdb()
    fleet = Fleet(tmp_path, f"{real_server_url}/6")
    yield fleet
    fleet.stop()


def prompt_of(job: JobAnswer) -> HandoffRequest:
    """A prompt with every embedding of a job, five tokens of text before each."""
    items, at = [], 5
    for item in job.items:
        for part in (item, *item.tracks):
            assert part.embedding is not None
            items.append(Placement(key=part.embedding.key, offset=at, length=part.embedding.shape[0]))
            at += part.embedding.shape[0] + 5
    return HandoffRequest(items=tuple(items), prompt_tokens=at, mrope_position_delta=-11)


def test_prefill_at_one_process_and_decode_at_another(fleet: Fleet) -> None:
    one, two = fleet.serve(), fleet.serve()
    with Client(one.url) as prefill, Client(two.url) as decode:
        job = prefill.encode([CAT, FILM])
        prompt = prompt_of(job)
        receipt = prefill.put_handoff("r1", prompt)
        found = decode.handoff("r1", wait=0)
        assert receipt.nbytes == len(found.to_json())
        wanted = [part.metadata for item in job.items for part in (item, *item.tracks)]
        assert [item.metadata for item in found.items] == wanted
        assert [item.runs for item in found.items] == [item.runs for item in prompt.items]
        rest = split_by_offset(found, found.items[1].offset + 2).needed()
        rows = prefill.slices(rest)
        assert [len(part) for part in rows] == [found.items[1].length - 2, found.items[2].length]
        with pytest.raises(HandoffConflict):
            decode.put_handoff("r1", HandoffRequest(items=()))
        decode.delete_handoff("r1")
        with pytest.raises(NotFound):
            prefill.handoff("r1", wait=0)


def test_the_sample_of_the_docs_runs(fleet: Fleet) -> None:
    text = DOCS.read_text(encoding="utf-8")
    sample = text.split("```python\n", 1)[1].split("```", 1)[0]
    for there, here in (
        ("http://127.0.0.1:8000", fleet.serve().url),
        ('["cat.jpg"]', repr([CAT])),
        ("20 ", "17 "),
    ):
        assert there in sample
        sample = sample.replace(there, here, 1)
    names: dict[str, Any] = {}
    exec(compile(sample, str(DOCS), "exec"), names)
    assert names["handoff"].items[0].length == names["place"].length
    assert len(names["rows"][0]) == names["place"].length - 2


def test_sixty_four_decodes_wait_at_three_processes_and_wake_at_once(fleet: Fleet) -> None:
    servers = [fleet.serve() for _ in range(3)]
    for (
        server
    ) in servers:  # FastAPI builds routes with the first request, and not from several threads at once
        assert httpx.get(f"{server.url}/healthz").status_code == 200

    async def all_of_them() -> tuple[list[Handoff], float]:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(AsyncClient(server.url)) for server in servers]
            waits = [asyncio.create_task(clients[n % 3].handoff("late", wait=60)) for n in range(64)]
            await asyncio.to_thread(wait_until, lambda: _waiting(servers) == 64, 30)
            prompt = prompt_of(await clients[0].encode([CAT]))
            began = time.monotonic()
            await clients[0].put_handoff("late", prompt)
            return await asyncio.gather(*waits), time.monotonic() - began

    found, seconds = asyncio.run(all_of_them())
    assert len({handoff.to_json() for handoff in found}) == 1
    assert seconds < 3, "a notice woke them, not the look"
    assert _waiting(servers) == 0


def _waiting(servers: list) -> int:
    return sum(server.services.completions.waiting for server in servers)


def test_waiting_neither_asks_the_server_all_the_time_nor_holds_threads(fleet: Fleet) -> None:
    server = fleet.serve()
    client = redis.Redis.from_url(fleet.settings.store_url)
    httpx.get(f"{server.url}/v1/handoff/never")
    begun = _scripts_run(client)
    with ThreadPoolExecutor(40) as pool, Client(server.url) as epd:
        waits = [pool.submit(epd.handoff, "never", 4.0) for _ in range(40)]
        wait_until(lambda: server.services.completions.waiting == 40)
        wait_until(lambda: _scripts_run(client) - begun >= 40)  # each has looked once
        before = _scripts_run(client)
        time.sleep(1.0)
        assert server.services.threads.borrowed_tokens == 0
        assert _scripts_run(client) - before < 10
        assert all(isinstance(wait.exception(), NotFound) for wait in waits)


def _scripts_run(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_a_decode_that_leaves_leaves_nothing(fleet: Fleet) -> None:
    server = fleet.serve()
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"GET /v1/handoff/gone?wait=60 HTTP/1.1\r\nHost: x\r\n\r\n")
    wait_until(lambda: server.services.completions.waiting == 1)
    client.close()
    wait_until(lambda: server.services.completions.waiting == 0)


def test_an_item_takes_a_few_hundred_bytes(fleet: Fleet) -> None:
    """On the wire as JSON with the longest fields, and in the server; docs/handoff.md has the figures."""
    server = fleet.serve()
    store = redis.Redis.from_url(fleet.settings.store_url)
    with Client(server.url) as epd:
        job = epd.encode([{"type": "image", "url": f"http://media.test/{n}.png"} for n in range(32)])
        prompt = prompt_of(job)
        receipt = epd.put_handoff("many", prompt)
        empty = epd.put_handoff("none", HandoffRequest(items=()))
        one_item = (receipt.nbytes - empty.nbytes) / 32
        assert one_item <= 600
        assert len(json.dumps(prompt.to_document())) / 32 <= 150
        assert store.memory_usage(keys.handoff("many")) / 32 <= 600
        answer = httpx.get(f"{server.url}/v1/handoff/many")
        assert len(answer.content) == receipt.nbytes
        print(f"an item: {one_item:.0f} bytes read, {store.memory_usage(keys.handoff('many')) / 32:.0f} kept")
