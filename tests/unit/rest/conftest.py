"""The application over the memory store, with a worker double behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from worker_double import WorkerDouble

from api.app import create_app
from api.depth import QueueDepth
from api.services import Services
from epd.config import Config
from epd.contracts.card import AudioRules, EncoderCard, ImageRules, VideoRules
from epd.contracts.media import Modality
from epd.settings import Settings
from epd.store.base import Heartbeat, Store
from epd.store.open import open_memory_store

CONFIG = {
    "default_model": "demo",
    "encoders": {name: {"family": name, "path": f"/models/{name}"} for name in ("eye", "ear", "cold")},
    "models": {
        "demo": {"image": "eye", "video": "eye", "audio": "ear"},
        "silent": {"image": "eye", "video": "eye"},
        "cold": {"image": "cold"},
    },
}


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


def announce(store: Store) -> None:
    both = {"dtype": "float32", "preprocess_revision": "1", "hidden": 8}
    eye = EncoderCard(
        name="eye",
        family="eye",
        modalities=(Modality.IMAGE, Modality.VIDEO),
        weights_digest="a" * 64,
        options=("min_pixels", "max_pixels", "fps"),
        image=ImageRules(min_pixels=16, max_pixels=4096),
        video=VideoRules(fps=2, min_frames=2, max_frames=8),
        **both,
    )
    audio = AudioRules(sample_rate=16000)
    ear = EncoderCard(
        name="ear", family="ear", modalities=(Modality.AUDIO,), weights_digest="b" * 64, audio=audio, **both
    )
    for card in (eye, ear):
        store.cards.announce(card)


def beat(store: Store, kind: str, at: float, **fields: object) -> None:
    store.heartbeats.beat(Heartbeat(name=f"{kind}@here", kind=kind, host="here", pid=1, at=at, **fields))


MakeRest = Callable[..., Rest]


@contextmanager
def running(folder: Path, **overrides: object) -> Iterator[Rest]:
    settings = Settings(blob_dir=folder / "blobs", embedding_dir=folder / "embeddings", **overrides)
    store, config, queues = open_memory_store(settings), Config.model_validate(CONFIG), {}
    announce(store)
    worker = WorkerDouble(store, config)
    depth = QueueDepth(lambda: dict(queues), chunk_items=settings.chunk_items)
    app = create_app(settings, config=config, store=store, publisher=worker, depth=depth)
    with TestClient(app) as client:
        yield Rest(client, store, worker, settings, app.state.services, queues)
    worker.stop()


@pytest.fixture
def make_rest(tmp_path: Path) -> Iterator[MakeRest]:
    """Applications with settings of one's own."""
    with ExitStack() as stack:
        yield lambda **overrides: stack.enter_context(running(tmp_path, **overrides))


@pytest.fixture
def rest(make_rest: MakeRest) -> Rest:
    return make_rest()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """One application for tests that must leave nothing behind."""
    with running(tmp_path_factory.mktemp("quiet")) as rest:
        yield rest
