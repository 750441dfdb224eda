"""What encoders and workers occupy, out of the heartbeats of those that measured it."""

from __future__ import annotations

from collections.abc import Sequence

from epd.store.values import Heartbeat
from epd.telemetry.counters import Count, counter_key, split_counter_key


def encoder_figure(beats: Sequence[Heartbeat], count: Count, encoder: str) -> int | None:
    """A figure of an encoder in one worker, the largest where workers differ; None when none tells it."""
    key = counter_key(count, encoder)
    return max((int(beat.counters[key]) for beat in beats if key in beat.counters), default=None)


def worker_figure(beat: Heartbeat, count: Count) -> int | None:
    """A figure of a GPU worker; None for workers that do not tell it."""
    value = beat.counters.get(counter_key(count))
    return None if value is None else int(value)


def graph_bytes(beat: Heartbeat) -> int | None:
    """Bytes of all captured forwards of a worker; None where it runs all eagerly."""
    own = [
        value for key, value in beat.counters.items() if split_counter_key(key)[0] == Count.GRAPH_MEMORY.value
    ]
    return int(sum(own)) if own else None
