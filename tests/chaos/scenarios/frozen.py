"""Workers that stand still for longer than their heartbeat, and come back from the dead."""

from __future__ import annotations

import logging
import signal
import time

from tests.chaos.checkpoints import MIXED_MODEL, SLOW_MODEL
from tests.chaos.faults import await_worker, measure_recovery, wait_for_work
from tests.chaos.play import Play, Scenario

logger = logging.getLogger(__name__)

_ITEMS = 24
#: Longer than a session's silence (3 s) and a worker's heartbeat (5 s), in seconds.
_LONG = 7.0


def run(play: Play) -> None:
    """What a frozen worker held ends elsewhere; thawed, it must not end it again."""
    stack, delay = play.world.stack, 0.2
    for turn in range(play.times(4, 1)):
        name, kind, model = [("gpu0", "encode", SLOW_MODEL), ("fetch", "fetch", MIXED_MODEL)][turn % 2]
        play.world.site.delay = delay if kind == "fetch" else 0.0
        play.submit(_ITEMS, model)
        held = wait_for_work(play, name, within=0.2)
        frozen = time.monotonic()
        stack.kill(name, signal.SIGSTOP)
        measure_recovery(play, held, frozen, name)
        time.sleep(max(0.0, frozen + _LONG - time.monotonic()))
        stack.kill(name, signal.SIGCONT)
        await_worker(play, name, kind)
    play.world.site.delay = 0.0
    play.facts["frozen_s"] = _LONG


SCENARIO = Scenario("frozen_longer_than_heartbeat", run)
