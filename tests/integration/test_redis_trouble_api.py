"""The API while its server is away, frozen, emptied or full: it says so, and serves again afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from epd.contracts.errors import StoreUnavailable
from epd.settings import Settings, child_environment
from epd.store.open import Store, open_store
from tests.api_worker_double import announce, beat
from tests.integration.transport_kit import Broker, wait_until

CONFIG = """
default_model = "demo"
[encoders.eye]
family = "dinov2"
path = "eye"
[models.demo]
image = "eye"
"""
ITEM = {"type": "image", "url": "http://media.test/cat.png"}
STORE_TIMEOUT_S = 2.0
#: An answer while the server is in trouble: the store's time limit, and some work around it.
SOON_S = 2 * STORE_TIMEOUT_S + 3
AGAIN_S = 10.0


class Workers:
    """Stands in for the fleet: tells every half second that all kinds of worker live."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopped.wait(0.5):
            with suppress(StoreUnavailable):
                announce(self._store)
                for kind in ("fetch", "decode"):
                    beat(self._store, kind, time.time())
                beat(self._store, "encode", time.time(), encoders=("eye",))


@dataclass(frozen=True)
class Api:
    url: str
    broker: Broker

    def readyz(self) -> int:
        return httpx.get(f"{self.url}/readyz", timeout=SOON_S).status_code

    def encode(self) -> httpx.Response:
        body = {"items": [ITEM], "wait": 0}
        return httpx.post(f"{self.url}/v1/encode", json=body, timeout=2 * SOON_S)

    def accepts_again(self) -> None:
        wait_until(lambda: self.readyz() == 200, within=AGAIN_S, what="ready again")
        wait_until(lambda: self.encode().status_code == 202, within=AGAIN_S, what="takes work again")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    (folder / "epd.toml").write_text(CONFIG)
    broker = Broker(folder, persistent=True)
    broker.start()
    settings = {
        "EPD_CONFIG": str(folder / "epd.toml"),
        "EPD_BROKER_URL": broker.url,
        "EPD_STORE_URL": broker.url.replace("/0", "/1"),
        "EPD_STORE_TIMEOUT": str(STORE_TIMEOUT_S),
        "EPD_BLOB_DIR": str(folder / "blobs"),
        "EPD_EMBEDDING_DIR": str(folder / "embeddings"),
    }
    store = open_store(Settings(store_url=settings["EPD_STORE_URL"], store_timeout=STORE_TIMEOUT_S))
    workers = Workers(store)
    try:
        with running(folder, settings) as url:
            yield Api(url, broker)
    finally:
        workers.stop()
        broker.close()


@contextmanager
def running(folder: Path, settings: dict[str, str]) -> Iterator[str]:
    """The API as its own process; gives its URL once it is ready."""
    port = Broker(folder).port  # a free one
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
        return False

    argv = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", str(port)]
    with (folder / "api.log").open("wb") as log:
        process = subprocess.Popen(argv, env=child_environment(settings), stdout=log, stderr=log)
        try:
            wait_until(is_up, within=40, what="api up")
            yield url
        finally:
            process.terminate()
            process.wait(15)


def assert_says_so(api: Api) -> None:
    """Not ready, and no work taken; both reported in time as problems. The process itself is well."""
    assert httpx.get(f"{api.url}/healthz", timeout=2).status_code == 200
    start = time.monotonic()
    assert api.readyz() == 503
    answer = api.encode()
    assert answer.status_code == 503, answer.text
    assert answer.json()["code"] == "store_unavailable"
    assert "retry-after" in answer.headers
    assert time.monotonic() - start < 3 * SOON_S


def test_a_server_that_restarts(api: Api) -> None:
    api.broker.stop()
    assert_says_so(api)
    api.broker.start()
    api.accepts_again()


def test_a_server_that_does_not_answer(api: Api) -> None:
    api.broker.process.send_signal(signal.SIGSTOP)
    try:
        assert_says_so(api)
    finally:
        api.broker.process.send_signal(signal.SIGCONT)
    api.accepts_again()


def test_a_server_that_forgot_everything(api: Api) -> None:
    api.broker.client.flushall()
    api.accepts_again()


def test_connections_that_are_cut(api: Api) -> None:
    for kind in ("normal", "pubsub"):
        api.broker.client.client_kill_filter(_type=kind, skipme=True)
    assert api.readyz() == 200, "a lost connection is tried again within the call"
    assert api.encode().status_code == 202


def test_a_full_server(api: Api) -> None:
    api.broker.client.config_set("maxmemory", 1)
    try:
        answer = api.encode()
        assert answer.status_code == 503, answer.text
        assert answer.json()["code"] == "store_unavailable"
    finally:
        api.broker.client.config_set("maxmemory", 0)
    api.accepts_again()
