"""Two GPU workers, one of them killed in the middle of a batch, again and again, each time the other one."""

from __future__ import annotations

from tests.chaos.checkpoints import SLOW_MODEL
from tests.chaos.faults import kill_at_work
from tests.chaos.play import Play, Scenario

_ITEMS = 32
_TRIES = 3


def run(play: Play) -> None:
    """Fifteen kills that each met held messages."""
    wanted, met, tries = play.times(15, 2), 0, 0
    while met < wanted and tries < wanted * _TRIES:
        play.submit(_ITEMS, SLOW_MODEL)
        met += kill_at_work(play, f"gpu{tries % 2}", within=0.2, kind="encode")
        tries += 1
    play.facts["kills"] = tries
    play.facts["kills_mid_batch"] = met
    play.require(met == wanted, f"only {met} of {wanted} kills met a worker at work")


SCENARIO = Scenario("gpu_killed_mid_batch", run)
