"""The server restarts, forgets, or cuts every connection; the workers consume again by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.transport_kit import RUNS, Broker, Worker, broker_fixture, hire_fixture, wait_until  # noqa: F401
from tests.integration.transport_producer import producer_app, publish

NAMES = [f"m{number}" for number in range(60)]


@pytest.fixture
def keeping_broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, persistent=True)
    broker.start()
    yield broker
    broker.close()


def cut_all_connections(broker: Broker) -> None:
    broker.client.client_kill_filter(_type="normal", skipme=True)
    broker.client.client_kill_filter(_type="pubsub", skipme=True)


def test_cut_connections_lose_nothing_and_leave_no_session_behind(
    broker: Broker, hire: Callable[..., Worker]
) -> None:
    publish(broker, NAMES, seconds=0.05)
    hire()
    for done in (5, 20):
        wait_until(lambda done=done: broker.runs().total() > done, within=15, what="progress")
        cut_all_connections(broker)
    wait_until(lambda: set(broker.runs()) == set(NAMES), within=20, what="all run")
    wait_until(lambda: broker.held() == 0, within=5, what="all acked")
    wait_until(lambda: broker.client.hlen("epd:sessions") == 1, within=6, what="old sessions settled")
    assert not broker.client.exists("one", "epd:again:one", "epd:solo:one", "epd:poison")


def test_a_restarted_server_with_its_data_loses_nothing(keeping_broker: Broker, tmp_path: Path) -> None:
    publish(keeping_broker, NAMES, seconds=0.02)
    worker = Worker(keeping_broker, tmp_path)
    try:
        wait_until(lambda: keeping_broker.runs().total() > 5, within=15, what="progress")
        keeping_broker.stop()
        keeping_broker.start()
        wait_until(lambda: set(keeping_broker.runs()) == set(NAMES), within=10, what="all run")
        wait_until(lambda: keeping_broker.held() == 0, within=6, what="all acked")
        assert not keeping_broker.client.exists("epd:poison"), "an outage was counted as a crash"
    finally:
        worker.close()


def test_an_empty_server_is_consumed_again(broker: Broker, hire: Callable[..., Worker]) -> None:
    publish(broker, ["before"])
    hire()
    wait_until(lambda: broker.runs()["before"] == 1, within=15, what="first run")
    broker.stop()
    broker.start()
    publish(broker, ["after"])
    wait_until(lambda: broker.runs()["after"] == 1, within=10, what="consumes again")


def test_inspect_and_an_idle_worker_answer_at_once(broker: Broker, hire: Callable[..., Worker]) -> None:
    hire()
    publish(broker, ["first"])
    wait_until(lambda: broker.runs()["first"] == 1, within=15, what="worker up")
    with producer_app(broker) as app:
        [answer] = (app.control.inspect(timeout=1.0, limit=1).ping() or {}).values()
    assert answer == {"ok": "pong"}
    names = [f"quick{number}" for number in range(5)]
    for name in names:
        publish(broker, [name])
        wait_until(lambda name=name: broker.runs()[name] == 1, within=0.4, what="woken by its bell")


def test_a_push_without_a_ring_is_seen(broker: Broker, hire: Callable[..., Worker]) -> None:
    publish(broker, ["foreign"])
    message = broker.client.rpop("one")
    broker.client.delete("epd:bell:one")
    hire()
    wait_until(lambda: broker.client.hlen("epd:sessions") == 1, within=15, what="worker up")
    broker.client.lpush("one", message)
    wait_until(lambda: broker.runs()["foreign"] == 1, within=3, what="seen")


def test_urgent_messages_overtake_bulk_and_bulk_does_not_starve(
    broker: Broker, hire: Callable[..., Worker]
) -> None:
    publish(broker, [f"bulk{number}" for number in range(300)], lane=lambda _: ("one", 9))
    publish(broker, [f"urgent{number}" for number in range(300)], lane=lambda _: ("two", 0))
    hire(prefetch="1")
    wait_until(lambda: len(broker.runs()) == 600, within=15, what="all run")
    order = [line.rstrip(" 0123456789") for line in broker.client.lrange(RUNS, 0, -1)]
    assert 10 <= order[:300].count("bulk") <= 80
    assert order[:20].count("urgent") >= 16


def test_what_is_no_message_is_dropped(broker: Broker, hire: Callable[..., Worker]) -> None:
    for junk in ("", "{", "[]", '"text"', '{"body": 1}', "\xff"):
        broker.client.lpush("one", junk)
    publish(broker, ["good"])
    hire()
    wait_until(lambda: broker.runs()["good"] == 1, within=15, what="good one run")
    wait_until(lambda: broker.held() == 0, within=3, what="junk gone")


def test_a_server_that_refuses_writes_for_a_while_is_consumed_again(
    broker: Broker, hire: Callable[..., Worker]
) -> None:
    publish(broker, ["before"])
    worker = hire()
    wait_until(lambda: broker.runs()["before"] == 1, within=15, what="first run")
    wait_until(lambda: broker.held() == 0, within=3, what="acked")
    # Stands for a full disk or memory too: the server answers, and every write is an error.
    broker.client.config_set("min-replicas-to-write", 1)
    wait_until(
        lambda: broker.client.info("errorstats").get("errorstat_NOREPLICAS", {"count": 0})["count"] > 10,
        within=15, what="refused more than once",
    )  # fmt: skip
    broker.client.config_set("min-replicas-to-write", 0)
    publish(broker, ["after"])
    wait_until(lambda: broker.runs()["after"] == 1, within=10, what="consumes again")
    assert not worker.is_dead()
