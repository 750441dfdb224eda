"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.chaos.play import Scenario
from tests.chaos.scenarios import gpu_killed

ALL: tuple[Scenario, ...] = (gpu_killed.SCENARIO,)
