"""Two fetch workers, one of them killed while it downloads."""

from __future__ import annotations

from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.faults import kill_at_work
from tests.chaos.play import Play, Scenario

_ITEMS = 20
_DELAY = 0.2


def run(play: Play) -> None:
    """Downloads take a while, so that the kills meet them half done."""
    play.world.site.delay = _DELAY
    try:
        met = 0
        for _ in range(play.times(10, 2)):
            play.submit(_ITEMS, MIXED_MODEL, MIXED)
            met += kill_at_work(play, "fetch", within=_DELAY, kind="fetch")
    finally:
        play.world.site.delay = 0.0
    play.facts["kills_at_work"] = met


SCENARIO = Scenario("fetch_killed", run)
