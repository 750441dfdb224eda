"""The store, twice: in memory and on a real server. Each test that asks for ``store`` runs on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from epd.settings import Settings
from epd.store import keys
from epd.store.base import Store
from epd.store.open import open_memory_store, open_store

#: Keys without a TTL that ``keys.py`` documents: bounded by byte limits, by open flights, by admission or
#: by the config.
BOUNDED = {keys.LRU, keys.LRU_BYTES, keys.LRU2, keys.LRU2_BYTES, keys.LRU_SIZES, keys.FLIGHTS}
BOUNDED |= {keys.CACHE_TOTALS}
BOUNDED |= {keys.LOAD, keys.LOAD_JOBS, keys.LOAD_CHECKS}
BOUNDED_PREFIX = keys.encoder("")

MakeStore = Callable[..., Store]


@pytest.fixture
def store_settings(tmp_path: Path, real_server_url: str) -> Settings:
    return Settings(
        store_url=f"{real_server_url}/11",
        blob_dir=tmp_path / "blobs",
        embedding_dir=tmp_path / "embeddings",
        store_timeout=5,
    )


@pytest.fixture
def server(store_settings: Settings) -> Iterator[redis.Redis]:
    """A plain client on the store's own database, which is empty before and checked for leaks after."""
    client = redis.Redis.from_url(store_settings.store_url, decode_responses=True)
    client.flushdb()
    yield client
    leaked = leaked_keys(client)
    client.flushdb()
    client.close()
    assert leaked == []


def leaked_keys(client: redis.Redis) -> list[str]:
    """Keys of ours that neither end by themselves nor are bounded."""
    return [
        key
        for key in client.scan_iter(f"{keys.PREFIX}*")
        if client.ttl(key) == -1 and key not in BOUNDED and not key.startswith(BOUNDED_PREFIX)
    ]


@pytest.fixture(params=["memory", "server"])
def make_store(request: pytest.FixtureRequest, store_settings: Settings) -> Iterator[MakeStore]:
    """Opens stores with some settings changed; of the memory kind, each is a world of its own."""
    opened: list[Store] = []
    if request.param == "server":
        request.getfixturevalue("server")

    def make(**changes: object) -> Store:
        changed = store_settings.model_copy(update=changes)
        opened.append(open_store(changed) if request.param == "server" else open_memory_store(changed))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()
