"""Broker and store are ended and started again with their data, in turn and both at once."""

from __future__ import annotations

import itertools
import signal
import time

from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.faults import await_more_ends
from tests.chaos.play import Play, Scenario
from tests.chaos.server import Server

_ITEMS = 40
_AWAY = 2.0
_RECOVERY_LIMIT = 60.0


def run(play: Play) -> None:
    """Recovery counts from the moment at which the last server answers again."""
    world = play.world
    groups: list[tuple[Server, ...]] = [(world.broker, world.store), (world.broker,), (world.store,)]
    ends = itertools.product((signal.SIGKILL, signal.SIGTERM), groups)
    for number, servers in itertools.islice(ends, play.times(6, 1)):
        play.submit(_ITEMS, MIXED_MODEL, MIXED, pace=0.05)
        time.sleep(play.dice.uniform(0.2, 1.0))
        for server in servers:
            server.end(number)
        time.sleep(play.dice.uniform(0.0, _AWAY))
        for server in servers:
            server.start()
        _measure(play)


def _measure(play: Play) -> None:
    started = time.monotonic()
    if not play.load.ledger.open_orders():
        return
    play.require(
        await_more_ends(play, _RECOVERY_LIMIT),
        f"nothing has ended {_RECOVERY_LIMIT:.0f} s after the servers were back",
    )
    play.recoveries.append(time.monotonic() - started)


SCENARIO = Scenario("redis_restarted_with_data", run)
