"""The lengths of the queues, asked over a channel that is kept, before and after the server was away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.transport_kit import ROOT, Broker, broker_fixture  # noqa: F401

#: Answers each line of its input with the lengths, or with the error's name.
ASKING = """
import json, sys
from epd.contracts.errors import StoreUnavailable
from tasks.queue_depth import unacked_messages, waiting_messages

for _ in sys.stdin:
    try:
        said = [dict(waiting_messages()), dict(unacked_messages())]
    except StoreUnavailable as error:
        said = error.code
    print(json.dumps(said), flush=True)
"""


class Asker:
    """A process that asks on command."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ASKING], cwd=ROOT, env={**os.environ, "EPD_BROKER_URL": url},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture
def asker(broker: Broker) -> Iterator[Asker]:
    running = Asker(broker.url)
    yield running
    running.close()


@pytest.mark.timeout(90)
def test_lengths_are_right_after_the_server_was_away(broker: Broker, asker: Asker) -> None:
    nothing = {"fetch": 0, "decode": 0, "encode": 0}
    assert asker.ask() == [nothing, nothing]
    broker.client.lpush("decode", "a", "b")
    assert asker.ask() == [nothing | {"decode": 2}, nothing]
    connected = len(broker.client.client_list())
    for _ in range(5):
        asker.ask()
    assert len(broker.client.client_list()) <= connected
    broker.client.client_kill_filter(_type="normal", skipme=True)
    assert asker.ask() == [nothing | {"decode": 2}, nothing]
    broker.stop()
    assert asker.ask() == "store_unavailable"
    broker.start()
    broker.client.lpush("encode", "c")
    assert asker.ask() == [nothing | {"encode": 1}, nothing]
