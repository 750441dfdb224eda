"""Children of the decode worker are killed while they decode."""

from __future__ import annotations

import logging
import time

from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.faults import kill_child, wait_for_work
from tests.chaos.play import Play, Scenario
from tests.chaos.world import wait_until

logger = logging.getLogger(__name__)

_ITEMS = 10
_RECOVERY_LIMIT = 60.0


def run(play: Play) -> None:
    """A kill at a random moment at which the worker holds messages. The pool replaces the child."""
    kills = 0
    for _ in range(play.times(15, 4)):
        play.submit(_ITEMS, MIXED_MODEL, MIXED)
        held, killed = wait_for_work(play, "decode", within=0.05), time.monotonic()
        if kill_child(play, "decode") is None or not held:
            continue
        kills += 1
        _measure(play, held, killed)
    play.facts["kills_at_work"] = kills
    play.require(play.world.stack.restarts("decode") == 0, "the worker itself died of its child's end")


def _measure(play: Play, held: set[tuple[str, str]], killed: float) -> None:
    """Until *all* has ended that the worker held, so the killed child's message is among it."""
    ended = play.watch.ended_at
    back = wait_until(lambda: all(part in ended for part in held), _RECOVERY_LIMIT)
    play.require(back, f"what decode held did not end within {_RECOVERY_LIMIT:.0f} s")
    if back:
        play.recoveries.append(max(ended[part] for part in held) - killed)


SCENARIO = Scenario("decode_child_killed", run)
