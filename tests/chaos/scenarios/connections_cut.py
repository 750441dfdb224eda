"""CLIENT KILL of every connection to broker and store, again and again."""

from __future__ import annotations

import time

from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.faults import cut_connections
from tests.chaos.play import Play, Scenario

_ITEMS = 100


def run(play: Play) -> None:
    """Every process connects again; until then requests may be refused as retryable."""
    play.submit(_ITEMS, MIXED_MODEL, MIXED, pace=0.05)
    cut = 0
    for _ in range(play.times(12, 3)):
        time.sleep(play.dice.uniform(0.2, 1.0))
        cut += cut_connections(play.world.broker) + cut_connections(play.world.store)
    play.facts["connections_cut"] = cut


SCENARIO = Scenario("connections_cut", run)
