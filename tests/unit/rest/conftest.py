"""The application with a store of its own and a worker double behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from api_worker_double import CONFIG, WorkerDouble, announce
from fastapi.testclient import TestClient

from api.app import create_app
from api.services import QueueDepth, Services
from epd.config import Config
from epd.settings import Settings
from epd.store.store import Store
from tests.store_kit import Databases, Stores


@dataclass
class Rest:
    """Everything of one application under test."""

    client: TestClient
    store: Store
    worker: WorkerDouble
    settings: Settings
    services: Services
    queues: dict[str, int]

    def encode(self, *items: dict[str, object], status: int = 200, **fields: object) -> dict:
        answer = self.client.post("/v1/encode", json={"items": list(items), **fields})
        assert answer.status_code == status, answer.text[:2000]
        return answer.json()


MakeRest = Callable[..., Rest]


@contextmanager
def running(folder: Path, stores: Stores, **overrides: object) -> Iterator[Rest]:
    settings = Settings(blob_dir=folder / "blobs", embedding_dir=folder / "embeddings", **overrides)
    store, config, queues = stores.open(settings), Config.model_validate(CONFIG), {}
    announce(store)
    worker = WorkerDouble(store, config)
    depth = QueueDepth(lambda: dict(queues))
    app = create_app(settings, config=config, store=store, publisher=worker, depth=depth)
    with TestClient(app) as client:
        yield Rest(client, store, worker, settings, app.state.services, queues)
    worker.stop()


@pytest.fixture
def make_rest(tmp_path: Path, stores: Stores) -> Iterator[MakeRest]:
    """Applications with settings of one's own."""
    with ExitStack() as stack:
        yield lambda **overrides: stack.enter_context(running(tmp_path, stores, **overrides))


@pytest.fixture
def rest(make_rest: MakeRest) -> Rest:
    return make_rest()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Rest]:
    """One application for tests that must leave nothing behind."""
    folder = tmp_path_factory.mktemp("quiet")
    with databases.empty() as stores, running(folder, stores) as rest:
        yield rest


@pytest.fixture
def forbid_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, whatever takes a thread fails."""

    async def fail(*_: object, **__: object) -> None:
        raise AssertionError("a request that the cache answers took a thread")

    return lambda: monkeypatch.setattr(Services, "call", fail)
