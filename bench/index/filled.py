"""An index on a real server with very many entries, by the scripts of the workers; no file is made."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice

from bench.index.entries import Row
from epd.store import keys as names
from epd.store.redis.connection import Argument, Command, Connection
from epd.store.redis.index import EmbeddingIndex
from epd.store.redis.portions import SIZE, portions
from epd.store.redis.scripts import Script
from epd.store.tier_limits import TierLimits

_DAY_MS = 86_400_000
_CALLS_AT_ONCE = 16
_NO_JOB = "0" * 32
_ANY_TOTAL = 1 << 60


class FilledIndex:
    """One database of a server."""

    def __init__(self, url: str) -> None:
        """Empty the database."""
        self.connection = Connection(url, timeout=60)
        self.connection.call("FLUSHDB", "SYNC")

    def fill(self, rows: Iterable[Row]) -> None:
        """Index embeddings as ``complete`` does."""
        source = iter(rows)
        while batch := list(islice(source, SIZE * _CALLS_AT_ONCE)):
            self.connection.pipe([self._call(portion) for portion in portions(batch)])

    def _call(self, rows: Sequence[Row]) -> Command:
        arguments: list[Argument] = [_DAY_MS, _DAY_MS]
        for row in rows:
            arguments += [row.key, row.text, row.nbytes, _NO_JOB, "0/image", "{}", "{}"]
        return self.connection.script_command(Script.COMPLETE, [], arguments)

    def used_bytes(self) -> int:
        """Memory of the server as a whole."""
        info = self.connection.call("INFO", "memory")
        fields = info if isinstance(info, dict) else dict(_fields(str(info)))
        return int(fields["used_memory"])

    def entries(self) -> int:
        """Files that L1 names."""
        return int(self.connection.call("ZCARD", names.LRU))

    def evict(self, nbytes: int) -> tuple[list[str], float]:
        """Take at least so many bytes out of L1; the keys, and the seconds that the call took."""
        limit = max(0, int(self.connection.call("GET", names.LRU_BYTES) or 0) - nbytes)
        command = EmbeddingIndex(self.connection, TierLimits(limit)).eviction([], pinned_too=False)
        started = time.perf_counter()
        (evicted,) = self.connection.pipe([command])
        return evicted, time.perf_counter() - started

    def look_up(self, keys: list[str]) -> float:
        """Seconds that reading keys took."""
        index = EmbeddingIndex(self.connection, TierLimits(_ANY_TOTAL))
        started = time.perf_counter()
        index.read(keys)
        return time.perf_counter() - started

    def copy_to_l2(self, keys: Iterable[str], *, leave_l1: bool) -> None:
        """Have L2 name files too, or alone."""
        target = 0 if leave_l1 else _ANY_TOTAL
        source = iter(keys)
        while batch := list(islice(source, 512)):
            self.connection.pipe(
                [
                    self.connection.script_command(Script.DEMOTED, [], (key, key[:16], target, _ANY_TOTAL, 1))
                    for key in batch
                ]
            )

    def close(self) -> None:
        """Empty the database and leave it."""
        self.connection.call("FLUSHDB")
        self.connection.close()


def _fields(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value
