"""The API is killed while jobs are submitted and followed; its clients come back to the new one."""

from __future__ import annotations

import time

import httpx

from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.play import Play, Scenario
from tests.chaos.world import wait_until

_ITEMS = 30
_BACK_LIMIT = 30.0


def run(play: Play) -> None:
    """The jobs that it had accepted are asked for by their ids, as the load does."""
    for _ in range(play.times(8, 2)):
        play.submit(_ITEMS, MIXED_MODEL, MIXED, pace=0.05)
        time.sleep(play.dice.uniform(0.1, 1.0))
        killed = time.monotonic()
        play.world.stack.kill("api")
        play.require(wait_until(lambda: not _is_up(play), 5), "the API did not die")
        play.require(wait_until(lambda: _is_up(play), _BACK_LIMIT), "the API did not come back")
        play.facts.setdefault("restart_s", []).append(round(time.monotonic() - killed, 2))


def _is_up(play: Play) -> bool:
    try:
        return httpx.get(f"{play.world.stack.api_url}/healthz", timeout=2).is_success
    except httpx.HTTPError:
        return False


SCENARIO = Scenario("api_killed", run)
