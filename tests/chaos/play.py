"""One performance of a scenario: its world, its dice, the load, and what is measured on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from epd.client import Client
from tests.chaos.corpus import IMAGES
from tests.chaos.load import Load
from tests.chaos.notices import NoticeWatch
from tests.chaos.world import USUAL, Setup, World


@dataclass
class Play:
    """Handed to a scenario. ``broken`` takes promises that did not hold, next to losses and duplicates."""

    world: World
    dice: random.Random
    short: bool
    load: Load
    watch: NoticeWatch
    client: Client
    recoveries: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def times(self, full: int, short: int) -> int:
        """How often, in the full form and in the short one."""
        return short if self.short else full

    def submit(
        self,
        count: int,
        model: str,
        types: Sequence[str] = IMAGES,
        *,
        pace: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        """Have the load submit so many new things."""
        self.load.add(self.world.corpus.take(count, types), model, pace=pace, deadline=deadline)

    def require(self, holds: bool, promise: str) -> None:
        """Note a promise that does not hold."""
        if not holds:
            self.broken.append(promise)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named storm.

    ``allowed`` are the failure codes that its items may end with. ``gone_is_lost``: whether a job that the
    API does not know any more counts as lost. ``limit``: seconds from the storm to the last item's end.
    ``in_short``: it belongs to the short form too.
    """

    name: str
    run: Callable[[Play], None]
    setup: Setup = USUAL
    allowed: frozenset[str] = frozenset()
    gone_is_lost: bool = True
    limit: float = 120.0
    in_short: bool = True
