"""The soak itself: a steady load of every type on one stack, looked at every few seconds."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.checkpoints import MIXED_MODEL
from tests.chaos.corpus import MIXED
from tests.chaos.load import Load
from tests.chaos.soak.sample import Sample, take_sample
from tests.chaos.world import Setup, World

_PERIOD = 2.0
_SHORTEST_LIFE = 30.0
#: New things in each period, and how many orders may be open before the load waits.
_ITEMS = 12
_MOST_OPEN = 20
_END_LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Soaked:
    """What the soak saw."""

    samples: list[Sample]
    submitted: int
    completed: int
    failed: dict[str, int]
    unfinished: int


def soak(config: Path, folder: Path, *, seconds: float, seed: int) -> Soaked:
    """Keep a steady load for so many seconds; raises ``StackFailed`` when the stack does not come up."""
    setup = Setup(settings=_settings(seconds), gpu_workers=1)
    with World(setup, config, folder, seed) as world:
        load = world.new_load(random.Random(seed))
        load.start()
        try:
            samples = _samples(world, load, seconds)
            load.finish(_END_LIMIT)
        finally:
            load.close()
    ledger = load.ledger
    unfinished = sum(len(order.things) for order in ledger.open_orders())
    return Soaked(samples, ledger.submitted, ledger.completed, dict(ledger.failed), unfinished)


def _settings(seconds: float) -> tuple[tuple[str, str], ...]:
    """What lives by a TTL lives so long that the second half of the run is the steady state."""
    life = f"{max(_SHORTEST_LIFE, seconds / 8):.0f}"
    times = ("JOB_TTL", "EMBEDDING_TTL", "MEDIA_TTL", "JOB_DEADLINE", "MAX_DEADLINE")
    return (*((f"EPD_{name}", life) for name in times), ("EPD_EMBEDDING_BYTES", str(8 << 20)))


def _samples(world: World, load: Load, seconds: float) -> list[Sample]:
    started = time.monotonic()
    samples = [take_sample(world, started)]
    while (now := time.monotonic() - started) < seconds:
        if len(load.ledger.open_orders()) < _MOST_OPEN:
            load.add(world.corpus.take(_ITEMS, MIXED), MIXED_MODEL)
        time.sleep(min(_PERIOD, max(0.0, seconds - now)))
        samples.append(take_sample(world, started))
    return samples
