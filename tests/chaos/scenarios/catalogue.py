"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.chaos.play import Scenario
from tests.chaos.scenarios import (
    api_killed,
    blobs_full,
    connections_cut,
    decode_child_killed,
    fetch_killed,
    frozen,
    gpu_killed,
    gpu_lost,
    poison,
    redis_lost,
    redis_restarted,
    stopped,
)

ALL: tuple[Scenario, ...] = (
    gpu_killed.SCENARIO,
    gpu_lost.ONE,
    gpu_lost.ALL,
    fetch_killed.SCENARIO,
    decode_child_killed.SCENARIO,
    api_killed.SCENARIO,
    frozen.SCENARIO,
    stopped.SCENARIO,
    connections_cut.SCENARIO,
    redis_restarted.SCENARIO,
    redis_lost.STORE,
    redis_lost.BROKER,
    blobs_full.SCENARIO,
    poison.SCENARIO,
)
