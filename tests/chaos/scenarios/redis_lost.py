"""A server comes back empty: the store (accepted jobs may be gone) or the broker (their messages are)."""

from __future__ import annotations

import time

from epd.contracts.errors import EpdError
from epd.contracts.job import State
from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.play import Play, Scenario
from tests.chaos.server import Server

_ITEMS = 20
_AWAY = 1.0
#: What the issue allows until new requests are served, in seconds.
_SERVED_LIMIT = 10.0
_TRY_LIMIT = 60.0
#: Jobs whose messages are lost end with their deadline, in seconds.
_DEADLINE = 10.0


def store_lost(play: Play) -> None:
    """A lost store means recompute: jobs of before may be unknown, new ones are served."""
    for _ in range(play.times(3, 1)):
        play.submit(_ITEMS, MIXED_MODEL, MIXED, pace=0.05)
        _lose(play, play.world.store)


def broker_lost(play: Play) -> None:
    """Jobs of before end by their deadline at the latest, new ones are served."""
    for _ in range(play.times(2, 1)):
        play.submit(_ITEMS, MIXED_MODEL, MIXED, pace=0.05, deadline=_DEADLINE)
        _lose(play, play.world.broker)


def _lose(play: Play, server: Server) -> None:
    time.sleep(play.dice.uniform(0.2, 1.0))
    server.end()
    server.wipe()
    time.sleep(play.dice.uniform(0.0, _AWAY))
    server.start()
    started = time.monotonic()
    served = _is_served(play, started + _TRY_LIMIT)
    took = time.monotonic() - started
    play.require(served and took <= _SERVED_LIMIT, f"a new request was served after {took:.1f} s")
    play.facts.setdefault("new_request_served_s", []).append(round(took, 2))


def _is_served(play: Play, end: float) -> bool:
    """Ask for a new thing until it is done."""
    (thing,) = play.world.corpus.take(1)
    while time.monotonic() < end:
        try:
            body = {"type": thing.type, "data": thing.data}
            job = play.client.encode([body], model=MIXED_MODEL, wait=2)
            if job.state is State.DONE:
                return True
        except EpdError:
            time.sleep(0.2)
    return False


STORE = Scenario("store_lost", store_lost, gone_is_lost=False)
BROKER = Scenario("broker_lost", broker_lost, allowed=frozenset({"deadline_exceeded"}))
