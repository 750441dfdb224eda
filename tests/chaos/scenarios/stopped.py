"""Workers are asked to end: SIGTERM finishes what runs and gives the rest back, SIGQUIT gives all back."""

from __future__ import annotations

import signal

from tests.chaos.checkpoints import MIXED_MODEL, SLOW_MODEL
from tests.chaos.faults import await_end, await_worker, wait_for_work
from tests.chaos.play import Play, Scenario

_ITEMS = 16
_DELAY = 0.2
_END_LIMIT = 30.0
_KINDS = (("gpu0", "encode", SLOW_MODEL), ("decode", "decode", MIXED_MODEL), ("fetch", "fetch", MIXED_MODEL))


def run(play: Play) -> None:
    """Each worker at work, with each signal; the supervisor starts it again.

    Downloads take a while, so that the fetch worker is met at work too.
    """
    play.world.site.delay = _DELAY
    try:
        met = 0
        for number in (signal.SIGTERM, signal.SIGQUIT)[: play.times(2, 1)]:
            for name, kind, model in _KINDS:
                play.submit(_ITEMS, model)
                met += bool(wait_for_work(play, name, within=0.1))
                _stop(play, name, number)
                await_worker(play, name, kind)
    finally:
        play.world.site.delay = 0.0
    play.facts["stops_at_work"] = met


def _stop(play: Play, name: str, number: signal.Signals) -> None:
    before = play.world.stack.pid(name)
    play.world.stack.kill(name, number)
    if not await_end(play, name, before, _END_LIMIT):
        raise TimeoutError(f"{name} did not end {_END_LIMIT:.0f} s after {number.name}")


SCENARIO = Scenario("stopped_at_work", run, in_short=False)
