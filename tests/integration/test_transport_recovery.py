"""What a dead worker held is run by others within seconds; a slow or frozen one does no harm."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

from tests.integration.transport_kit import Broker, Worker, broker_fixture, hire_fixture, wait_until  # noqa: F401
from tests.integration.transport_producer import publish

NAMES = [f"m{number}" for number in range(12)]


def holding_worker(broker: Broker, hire: Callable[..., Worker]) -> Worker:
    """A worker that holds all of NAMES: four of them run and the rest wait in it."""
    publish(broker, NAMES, seconds=0.6)
    worker = hire()
    wait_until(lambda: broker.held() == len(NAMES), within=15, what="messages held")
    return worker


def the_session(broker: Broker) -> str:
    [session] = broker.client.hkeys("epd:sessions")
    return session


def test_another_worker_of_the_machine_takes_over_at_once(
    broker: Broker, hire: Callable[..., Worker]
) -> None:
    victim = holding_worker(broker, hire)
    session = the_session(broker)
    hire()
    wait_until(lambda: broker.client.hlen("epd:sessions") == 2, within=15, what="second worker up")
    victim.kill()
    wait_until(lambda: not broker.client.hexists("epd:sessions", session), within=2, what="given back")
    wait_until(lambda: set(broker.runs()) == set(NAMES), within=10, what="all run")


def test_a_worker_elsewhere_is_found_dead_by_its_silence(broker: Broker, hire: Callable[..., Worker]) -> None:
    victim = holding_worker(broker, hire)
    session = the_session(broker)
    elsewhere = {**json.loads(broker.client.hget("epd:sessions", session)), "namespace": "another machine"}
    broker.client.hset("epd:sessions", session, json.dumps(elsewhere))
    hire()
    wait_until(lambda: broker.client.hlen("epd:sessions") == 2, within=15, what="second worker up")
    victim.kill()
    took = wait_until(lambda: not broker.client.hexists("epd:sessions", session), within=5, what="recovery")
    assert took > 1.5, "taken for dead too early"
    wait_until(lambda: set(broker.runs()) == set(NAMES), within=10, what="all run")
    assert broker.client.hlen("epd:sessions") == 1, "the living worker was taken for dead"


def test_the_same_worker_finds_its_messages_when_it_restarts(
    broker: Broker, hire: Callable[..., Worker]
) -> None:
    worker = holding_worker(broker, hire)
    old = the_session(broker)
    worker.kill()
    worker.start()
    wait_until(lambda: set(broker.client.hkeys("epd:sessions")) - {old}, within=15, what="signed on")
    wait_until(lambda: not broker.client.hexists("epd:sessions", old), within=1, what="recovery")
    wait_until(lambda: set(broker.runs()) == set(NAMES), within=10, what="all run")


def test_a_frozen_worker_loses_its_messages_and_cannot_ack_them(
    broker: Broker, hire: Callable[..., Worker]
) -> None:
    frozen = holding_worker(broker, hire)
    session = the_session(broker)
    frozen.signal(signal.SIGSTOP)
    hire()
    wait_until(lambda: broker.client.hexists("epd:sessions", session) is False, within=10, what="given away")
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: set(broker.runs()) == set(NAMES), within=15, what="all run")
    wait_until(lambda: broker.held() == 0, within=10, what="all acked")
    wait_until(lambda: broker.client.hexists("epd:sessions", session), within=3, what="signed on again")
    publish(broker, ["after"])
    wait_until(lambda: broker.runs()["after"] == 1, within=3, what="both consume")
    assert not broker.client.exists("one", "epd:again:one", "epd:solo:one", "epd:poison")


def test_a_cold_shutdown_gives_all_back(broker: Broker, hire: Callable[..., Worker]) -> None:
    worker = holding_worker(broker, hire)
    worker.process.send_signal(signal.SIGQUIT)
    worker.process.wait(10)
    assert broker.held() == 0
    assert broker.client.hlen("epd:sessions") == 0
    assert broker.client.llen("epd:again:one") >= len(NAMES) - len(broker.runs())


def test_a_warm_shutdown_finishes_what_runs_and_gives_back_the_rest(
    broker: Broker, hire: Callable[..., Worker]
) -> None:
    worker = holding_worker(broker, hire)
    worker.process.terminate()
    assert worker.process.wait(10) == 0
    done = set(broker.runs())
    assert broker.client.hlen("epd:sessions") == 0
    assert broker.held() == 0
    assert broker.client.llen("epd:again:one") == len(NAMES) - len(done)
    hire()
    wait_until(lambda: set(broker.runs()) == set(NAMES), within=15, what="all run")
    assert set(broker.runs().values()) == {1}, "ran twice"
