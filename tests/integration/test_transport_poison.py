"""A message that kills its worker is tried three times and then failed alone."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.transport_kit import (  # noqa: F401
    POISONED,
    RUNS,
    Broker,
    Worker,
    broker_fixture,
    hire_fixture,
    wait_until,
)
from tests.integration.transport_producer import KILL, publish

MATES = [f"m{number}" for number in range(40)]


def publish_with_poison(broker: Broker) -> None:
    publish(broker, MATES[:20], seconds=0.02)
    publish(broker, ["poison"], task=KILL)
    publish(broker, MATES[20:], seconds=0.02)


def check_that_only_the_poison_failed(broker: Broker) -> None:
    wait_until(lambda: broker.client.llen(POISONED), within=5, what="poison handed to the hook")
    wait_until(lambda: set(broker.runs()) >= set(MATES), within=15, what="mates run")
    wait_until(lambda: broker.held() == 0, within=5, what="all acked")
    assert broker.client.lrange(POISONED, 0, -1) == ["poison"]
    assert broker.client.lrange(RUNS, 0, -1).count("poison dies") == 3
    assert not broker.client.exists("one", "epd:again:one", "epd:solo:one", "epd:poison")


def test_poison_that_ends_the_whole_worker(broker: Broker, hire: Callable[..., Worker]) -> None:
    publish_with_poison(broker)
    worker = hire(prefetch="8")
    for _ in range(3):
        wait_until(worker.is_dead, within=20, what="worker killed by its task")
        worker.start()
    check_that_only_the_poison_failed(broker)
    tries = [line.split() for line in broker.client.lrange(RUNS, 0, -1)]
    assert all(int(count) <= 2 for _, count in tries if count.isdigit())
    assert not worker.is_dead()


def test_poison_that_ends_a_prefork_child(broker: Broker, hire: Callable[..., Worker]) -> None:
    publish_with_poison(broker)
    hire(**{"-P": "prefork", "-c": "2"})
    wait_until(lambda: broker.client.llen(POISONED), within=30, what="given up")
    check_that_only_the_poison_failed(broker)
