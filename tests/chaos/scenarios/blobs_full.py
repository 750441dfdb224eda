"""A blob folder that holds a few items only: requests are refused or wait, and nothing is lost."""

from __future__ import annotations

from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.play import Play, Scenario
from tests.chaos.world import USUAL, Setup

_MIB = 1 << 20
_SETUP = Setup(settings=(*USUAL.settings, ("EPD_BLOB_BYTES", str(_MIB))))


def run(play: Play) -> None:
    """More media at once than fits."""
    play.world.site.delay = 0.1
    play.submit(play.times(150, 50), MIXED_MODEL, MIXED)


_ALLOWED = frozenset({"blob_space_full", "overloaded"})

SCENARIO = Scenario("blob_space_full", run, setup=_SETUP, allowed=_ALLOWED)
