"""Processes that use the store are killed at any moment: no half file, no half record, no lost waiter."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from epd.contracts.job import State
from epd.settings import Settings
from epd.store import keys
from epd.store.files.embedding_format import open_embedding
from epd.store.open import Store, open_store
from tests.contract.store_values import IMAGE, key_of, new_job, part_of, wait_until, waiter_of

ROOT = Path(__file__).resolve().parents[2]
KILLS = 6
LEASE = 0.3

#: Claims, writes and completes one key after another, as a GPU worker does, and tells when it is at work.
WORKER = """
import sys
from epd.settings import Settings
from epd.store.values import Completed
from epd.store.open import open_store
from tests.contract.store_values import IMAGE, data_of, entry_of, key_of, waiter_of

url, root, lease, first, jobs = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
store = open_store(Settings(store_url=url, embedding_dir=root, flight_lease=lease))
print("ready", flush=True)
for number, job in enumerate(jobs, first):
    entry = entry_of(key_of(number), tokens=2000)
    store.flights.claim(key_of(number), waiter_of(job))
    store.embeddings.publish_file(entry.ref, data_of(entry), {})
    store.flights.complete([Completed(entry, job, IMAGE, {})])
"""


@pytest.fixture
def settings(tmp_path: Path, real_server_url: str) -> Settings:
    return Settings(
        store_url=f"{real_server_url}/12", embedding_dir=tmp_path / "embeddings", flight_lease=LEASE
    )


def _start(settings: Settings, first: int, jobs: list[str]) -> subprocess.Popen[str]:
    arguments = [settings.store_url, str(settings.embedding_dir), str(LEASE), str(first), *jobs]
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


def _kill(worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)
    assert worker.stdout is not None
    worker.stdout.close()


def _check(store: Store, settings: Settings, first: int, jobs: list[str]) -> int:
    """Every file is whole, and every part is done with its embedding there, or not touched; how many are."""
    for path in settings.embedding_dir.glob("*/encoder_cache.safetensors"):
        open_embedding(path)
    done = 0
    for number, job in enumerate(jobs, first):
        part, (entry,) = part_of(store, job), store.embeddings.lookup([key_of(number)])
        assert part.state is (State.QUEUED if entry is None else State.DONE)
        assert part.metadata == (entry.metadata if entry else None)
        done += entry is not None
    assert store.embeddings.stats().nbytes == done * 2000 * 32 + store_bytes_before(store, first)
    return done


def store_bytes_before(store: Store, first: int) -> int:
    """Bytes of the keys of earlier rounds."""
    earlier = store.embeddings.lookup([key_of(number) for number in range(first)]) if first else []
    return sum(entry.ref.nbytes for entry in earlier if entry)


def test_a_killed_worker_leaves_nothing_half_done(settings: Settings) -> None:
    client = redis.Redis.from_url(settings.store_url)
    client.flushdb()
    store, dice, per_round = open_store(settings), random.Random(5), 400
    done = unfinished = 0
    for round_number in range(KILLS):
        jobs = [new_job(store) for _ in range(per_round)]
        worker = _start(settings, round_number * per_round, jobs)
        time.sleep(dice.uniform(0, 0.15))  # the moment of the kill, not a wait for luck
        _kill(worker)
        finished = _check(store, settings, round_number * per_round, jobs)
        done, unfinished = done + finished, unfinished + per_round - finished
    assert done > 0
    assert unfinished > 0
    wait_until(lambda: client.zcard(keys.FLIGHTS) == 0 or store.flights.orphans() != [])
    store.embeddings.sweep(older_than=0)
    assert list(settings.embedding_dir.glob("*/.tmp-*")) == []
    client.flushdb()
    client.close()
    store.close()


def test_the_waiters_of_a_killed_owner_are_found(settings: Settings) -> None:
    client = redis.Redis.from_url(settings.store_url)
    client.flushdb()
    store = open_store(settings)
    owner, waits = new_job(store), new_job(store)
    program = WORKER.replace(
        "    store.embeddings.publish_file", "    print('claimed', flush=True); input()\n    #"
    )
    arguments = [settings.store_url, str(settings.embedding_dir), str(LEASE), "0", owner]
    worker = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    assert [worker.stdout.readline() for _ in range(2)] == ["ready\n", "claimed\n"]
    store.flights.claim(key_of(0), waiter_of(waits))
    _kill(worker)
    worker.stdin.close()
    found: list[str] = []
    wait_until(lambda: bool(found.extend(store.flights.orphans()) or found))
    assert found in ([f"message of {owner}"], [f"message of {waits}"])
    assert part_of(store, waits, IMAGE).state is State.QUEUED
    client.flushdb()
    client.close()
    store.close()
