"""What workers count: totals since a worker's start. Its heartbeats carry them, and the API shows them.

A counter may be kept per encoder; its key is then ``name/encoder``.
"""

from __future__ import annotations

import threading
from enum import StrEnum


class Count(StrEnum):
    """Every counter. Its name ends in its unit, unless it is a plain number.

    The value is the key in ``Heartbeat.counters``; ``metrics`` has the help texts.
    """

    FETCH_ITEMS = "fetch_items"
    FETCH_FAILURES = "fetch_failures"
    FETCH_BYTES = "fetch_bytes"
    FETCH_SECONDS = "fetch_seconds"
    DOWNLOADS = "downloads"
    NOT_MODIFIED = "not_modified"
    SAVED_BYTES = "saved_bytes"
    CACHE_HITS = "cache_hits"
    CACHE_MISSES = "cache_misses"
    FLIGHTS_JOINED = "flights_joined"
    DECODE_ITEMS = "decode_items"
    DECODE_FAILURES = "decode_failures"
    DECODE_SECONDS = "decode_seconds"
    ENCODE_ITEMS = "encode_items"
    ENCODE_FAILURES = "encode_failures"
    ENCODE_BATCHES = "encode_batches"
    ENCODE_TOKENS = "encode_tokens"
    ENCODE_SECONDS = "encode_seconds"
    SEGMENTS_REUSED = "segments_reused"
    SEGMENTS_ENCODED = "segments_encoded"
    ENCODE_BATCH_PEAK = "encode_batch_peak"
    FETCH_EXPIRED = "fetch_expired"
    FETCH_DROPPED = "fetch_dropped"
    DECODE_EXPIRED = "decode_expired"
    DECODE_DROPPED = "decode_dropped"
    ENCODE_EXPIRED = "encode_expired"
    ENCODE_DROPPED = "encode_dropped"
    ENCODE_HANGS = "encode_hangs"
    ENCODER_MEMORY = "encoder_memory_bytes"
    WORKER_MEMORY = "worker_memory_bytes"
    STAGING_MEMORY = "staging_memory_bytes"
    GRAPHS = "graphs"
    GRAPH_MEMORY = "graph_memory_bytes"
    GRAPH_HITS = "graph_hits"
    GRAPH_MISSES = "graph_misses"
    GRAPH_DECLINED = "graph_declined"
    GRAPH_UNITS = "graph_units"
    GRAPH_PADDING = "graph_padding_units"
    GRAPH_PADDING_SHARE = "graph_padding_share"
    REAPED_MESSAGES = "reaped_messages"
    SWEPT_FILES = "swept_files"
    RETRIED_ITEMS = "retried_items"


_SEPARATOR = "/"


def counter_key(name: Count, encoder: str | None = None) -> str:
    """The key of a counter in a heartbeat."""
    return name.value if encoder is None else f"{name.value}{_SEPARATOR}{encoder}"


def split_counter_key(key: str) -> tuple[str, str]:
    """The name and the encoder of a key; the encoder is empty where there is none."""
    name, _, encoder = key.partition(_SEPARATOR)
    return name, encoder


class Counters:
    """Thread-safe totals of one worker."""

    def __init__(self) -> None:
        """All at zero."""
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}

    def add(self, name: Count, value: float = 1.0, *, encoder: str | None = None) -> None:
        """Add to a counter."""
        key = counter_key(name, encoder)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + value

    def peak(self, name: Count, value: float, *, encoder: str | None = None) -> None:
        """Keep the highest value so far."""
        key = counter_key(name, encoder)
        with self._lock:
            self._values[key] = max(self._values.get(key, value), value)

    def snapshot(self) -> dict[str, float]:
        """All values, for a heartbeat."""
        with self._lock:
            return dict(self._values)
