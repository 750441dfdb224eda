"""The application with a store and a worker double, and the embeddings that handoff tests refer to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from api.app import create_app
from api.encode.capacity import QueueDepth
from api.services import Services
from epd.config import Config
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.contracts.messages import Wanted
from epd.settings import Settings
from epd.store.open import Store
from epd.store.values import Completed
from tests.api_worker_double import CONFIG, WorkerDouble, announce
from tests.store_kit import Stores

#: Keys of an image of five rows and of audio of seven.
IMAGE, AUDIO = "c3" * 32, "d4" * 32
HANDOFF_URL = "/v1/handoff/chatcmpl-9f:1"


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


def cache_image_and_audio(rest: Rest) -> Rest:
    """Put the embeddings of ``IMAGE`` and ``AUDIO`` into the cache."""
    for key, track in ((IMAGE, Modality.IMAGE), (AUDIO, Modality.AUDIO)):
        wanted = Wanted(key=key, track=track, encoder="eye", encoder_identity="x")
        entry = rest.worker.put(wanted, "e" * 64)
        rest.store.flights.complete([Completed(entry, "0" * 32, PartId(0, track), {})])
    return rest


def handoff_body(*items: tuple[str, int, int], **fields: Any) -> dict[str, Any]:
    """The body of a PUT, from a key, an offset and a length for each item."""
    return {"items": [{"key": key, "offset": at, "length": length} for key, at, length in items], **fields}
