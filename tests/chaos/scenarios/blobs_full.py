"""A blob folder that holds a few items only: requests are refused or wait, and nothing is lost."""

from __future__ import annotations

from epd.contracts.errors import EpdError
from epd.telemetry.counters import Count
from tests.chaos.checkpoints import SLOW_MODEL
from tests.chaos.corpus import POSTERS
from tests.chaos.play import Play, Scenario
from tests.chaos.world import USUAL, Setup, wait_until

#: Three decoded posters fit.
_SETUP = Setup(settings=(*USUAL.settings, ("EPD_BLOB_BYTES", str(2 << 20))))
_ALLOWED = frozenset({"blob_space_full", "overloaded"})
_LIMIT = 90.0


def run(play: Play) -> None:
    """More media at once than fits: the want of room has to show, or nothing was tried."""
    play.submit(play.times(100, 30), SLOW_MODEL, POSTERS)
    full = wait_until(lambda: _retried(play) + sum(play.load.ledger.refused.values()) > 0, _LIMIT)
    play.require(full, "the blob folder was never full")
    play.load.finish(_LIMIT)
    play.facts["postponed"] = _retried(play)


def _retried(play: Play) -> float:
    """Items that a worker put off."""
    try:
        workers = play.client.status().workers
    except EpdError:
        return 0.0
    return sum(worker.counters.get(Count.RETRIED_ITEMS, 0.0) for worker in workers)


SCENARIO = Scenario("blob_space_full", run, setup=_SETUP, allowed=_ALLOWED)
