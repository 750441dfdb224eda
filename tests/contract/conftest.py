"""Fixtures: a store on an empty database of a real server, checked for leaked keys after each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from epd.settings import Settings
from epd.store.open import Store
from tests.store_kit import MakeStore, Stores, leaked_keys


@pytest.fixture
def store_settings(tmp_path: Path, stores: Stores) -> Settings:
    return Settings(
        store_url=stores.url,
        blob_dir=tmp_path / "blobs",
        embedding_dir=tmp_path / "embeddings",
        store_timeout=5,
    )


@pytest.fixture
def server(store_settings: Settings) -> Iterator[redis.Redis]:
    """A plain client on the store's own database, which is checked for leaks after the test."""
    with redis.Redis.from_url(store_settings.store_url, decode_responses=True) as client:
        yield client
        assert leaked_keys(client) == []


@pytest.fixture
def make_store(stores: Stores, store_settings: Settings, server: redis.Redis) -> MakeStore:
    """Opens stores with some settings changed, all on one database."""
    return lambda **changes: stores.open(store_settings.model_copy(update=changes))


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()
