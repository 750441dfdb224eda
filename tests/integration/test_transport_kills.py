"""Workers die by SIGKILL, again and again, and every message is run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.integration.transport_kit import Broker, Worker, broker_fixture, hire_fixture, wait_until  # noqa: F401
from tests.integration.transport_producer import publish


@pytest.mark.parametrize(("pool", "kills"), [("threads", 6), ("prefork", 1)])
def test_no_message_is_lost_over_kills_under_backlog(
    broker: Broker, hire: Callable[..., Worker], pool: str, kills: int
) -> None:
    names = [f"m{number}" for number in range(kills * 250)]
    dice = random.Random(7)
    publish(broker, names, lane=lambda _: (dice.choice(["one", "two"]), dice.choice([0, 9])), seconds=0.002)
    worker = hire(**{"-P": pool, "deliveries": "50", "prefetch": "16"})
    for _ in range(kills):
        before = broker.runs().total()
        wait_until(lambda before=before: broker.runs().total() > before + 20, within=15, what="progress")
        time.sleep(dice.uniform(0, 0.2))  # the moment of the kill is what the test is about
        worker.kill()
        worker.start()
    wait_until(lambda: len(broker.runs()) == len(names), within=30, what="all run")
    wait_until(lambda: broker.held() == 0, within=5, what="all acked")
    assert set(broker.runs()) == set(names)
    assert not broker.client.keys("epd:again:*")
    assert not broker.client.keys("epd:solo:*")
    assert not broker.client.exists("epd:poison", "one", "two")
