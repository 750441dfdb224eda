"""Movers are killed at any moment while embeddings are made and read: no wrong hit, and the bytes add up."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from epd.contracts.errors import NotFound
from epd.settings import Settings
from epd.store.files.embedding_format import FILE_NAME
from epd.store.open import Store, open_store
from epd.store.values import Completed
from tests.contract.store_values import IMAGE, data_of, entry_of, key_of, wait_until

ROOT = Path(__file__).resolve().parents[2]
MIB, TOKENS = 1 << 20, 2000
ROUNDS, PER_ROUND = 8, 40
WITHIN = 90.0

#: Moves without end, with a lease that is over soon after a kill.
MOVER = """
import sys, time
from pathlib import Path
from epd.settings import Settings
from epd.store.cache import mover
from epd.store.open import open_store

url, root = sys.argv[1:]
mover.LEASE = 0.05
settings = Settings(store_url=url, embedding_dir=root + "/l1", l2_dir=Path(root + "/l2"))
store = open_store(settings.model_copy(update={"embedding_bytes": 1 << 20, "l2_bytes": 3 << 20}))
print("ready", flush=True)
while True:
    if not store.embeddings.move(1).more:
        time.sleep(0.005)
"""


@pytest.fixture
def store(tmp_path: Path, real_server_url: str) -> Iterator[Store]:
    url = f"{real_server_url}/13"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        settings = Settings(store_url=url, embedding_dir=tmp_path / "l1", l2_dir=tmp_path / "l2")
        sizes = {"embedding_bytes": MIB, "l2_bytes": 3 * MIB}
        opened = open_store(settings.model_copy(update=sizes))
        yield opened
        opened.close()
        client.flushdb()


@contextmanager
def moving(url: str, folder: Path) -> Iterator[None]:
    """A mover that is killed at the end."""
    mover = subprocess.Popen(
        [sys.executable, "-c", MOVER, url, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert mover.stdout is not None
    try:
        assert mover.stdout.readline() == "ready\n"
        yield
    finally:
        mover.send_signal(signal.SIGKILL)
        mover.wait(10)
        mover.stdout.close()


def _put(store: Store, number: int) -> None:
    entry = entry_of(key_of(number), TOKENS)
    store.embeddings.publish_file(entry.ref, data_of(entry, number % 251), {})
    store.flights.complete([Completed(entry, "0" * 32, IMAGE, {})])


def _read(store: Store, number: int) -> bool:
    """Whether it is a hit; a hit is right, or was evicted since."""
    (entry,) = store.embeddings.lookup([key_of(number)])
    if entry is None:
        return False
    try:
        stored, file = store.embeddings.open(key_of(number))
    except NotFound:
        return False
    with file:
        file.seek(stored.offset)
        assert file.read() == bytes(data_of(entry, number % 251))
    return True


def test_killed_movers_leave_no_wrong_hit_and_no_wrong_sum(
    store: Store, tmp_path: Path, real_server_url: str
) -> None:
    dice, made, hits = random.Random(11), 0, 0
    end = time.monotonic() + WITHIN
    while made < ROUNDS * PER_ROUND or not _every_move_was_made(store):
        assert time.monotonic() < end, store.embeddings.stats().totals
        with moving(f"{real_server_url}/13", tmp_path):
            until = time.monotonic() + dice.uniform(0.1, 0.5)
            for number in range(made, made + PER_ROUND):
                _put(store, number)
                hits += _read(store, dice.randrange(number + 1))
            made += PER_ROUND
            while time.monotonic() < until:
                hits += _read(store, dice.randrange(made))
    _settle(store)
    assert hits > 50
    assert store.embeddings.stats().totals.corrupt == 0
    store.embeddings.sweep(older_than=-60)
    _check_sums(store, tmp_path)
    assert sum(_read(store, number) for number in range(made)) > 40


def _every_move_was_made(store: Store) -> bool:
    """On a busy machine a mover may be killed before it did much: then it takes more rounds."""
    totals = store.embeddings.stats().totals
    return min(totals.demotions, totals.promotions, totals.evicted_l2) > 0


def _settle(store: Store) -> None:
    def at_rest() -> bool:
        moved = store.embeddings.move(5)
        return not (moved.demoted or moved.promoted or moved.more)

    wait_until(lambda: all(at_rest() for _ in range(3)))


def _check_sums(store: Store, folder: Path) -> None:
    """Every file has its name in the index and every name its file, within the limits."""
    stats = store.embeddings.stats()
    assert stats.l2 is not None
    for root, held in ((folder / "l1", stats), (folder / "l2", stats.l2)):
        files = [path for path in root.rglob("*") if path.is_file()]
        assert {path.name for path in files} <= {FILE_NAME}
        assert (len(files), len(files) * TOKENS * 32) == (held.entries, held.nbytes)
        assert held.nbytes <= held.limit
