"""What encoders and workers occupy, out of the heartbeats of those that measured it."""

from __future__ import annotations

from collections.abc import Sequence

from epd.store.base import Heartbeat
from epd.telemetry.counters import Count, counter_key


def encoder_memory(beats: Sequence[Heartbeat], encoder: str) -> int | None:
    """Bytes of an encoder in one worker, the largest where workers differ; None when none has loaded it."""
    key = counter_key(Count.ENCODER_MEMORY, encoder)
    return max((int(beat.counters[key]) for beat in beats if key in beat.counters), default=None)


def worker_memory(beat: Heartbeat) -> int | None:
    """Bytes that a GPU worker holds on its device; None for workers that have none."""
    value = beat.counters.get(counter_key(Count.WORKER_MEMORY))
    return None if value is None else int(value)
