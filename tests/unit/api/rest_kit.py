"""The application with a store of its own and a worker double behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi.testclient import TestClient

from api.app import create_app
from api.encode.capacity import QueueDepth
from api.services import Services
from epd.config import Config
from epd.settings import Settings
from epd.store.open import Store
from tests.api_worker_double import CONFIG, WorkerDouble, announce
from tests.store_kit import Stores


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
