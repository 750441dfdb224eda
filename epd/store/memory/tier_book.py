"""Which files which tier names, in one process: what ``lua/lib_lru.lua`` is on the server.

Callers hold the state's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from epd.contracts.cache import Tier
from epd.store.memory.state import MemoryState, TierFile

_OTHER = {Tier.L1: Tier.L2, Tier.L2: Tier.L1}


class TierBook:
    """The files of both tiers, each tier in the order of last use."""

    def __init__(self, state: MemoryState) -> None:
        """Over shared state."""
        self._state = state

    def of(self, tier: Tier) -> dict[str, TierFile]:
        """The files of a tier by key."""
        return self._state.tiers[tier]

    def has(self, key: str) -> bool:
        """Whether there is an entry that lives."""
        entry = self._state.entries.get(key)
        return entry is not None and entry.ends_at > time.time()

    def nbytes(self, tier: Tier) -> int:
        """Bytes of a tier."""
        return sum(file.nbytes for file in self.of(tier).values())

    def name(self, tier: Tier, key: str, file: TierFile) -> None:
        """Have a tier name a file."""
        self.of(tier)[key] = file

    def touch(self, key: str) -> None:
        """Refresh the last use of a key in both tiers."""
        now = time.time()
        for tier in Tier:
            if key in self.of(tier):
                file = self.of(tier).pop(key)
                file.used_at = now
                self.of(tier)[key] = file

    def leave(self, tier: Tier, key: str) -> bool:
        """Take a file out of a tier; the entry goes too where the other tier has none."""
        if key not in self.of(_OTHER[tier]):
            return self.drop(key)
        return self.of(tier).pop(key, None) is not None

    def drop(self, key: str) -> bool:
        """Take an entry out of both tiers; False when it was not there."""
        files = [self.of(tier).pop(key, None) for tier in Tier]
        return self._state.entries.pop(key, None) is not None or any(files)

    def walk(
        self, tier: Tier, limit: int, take: Callable[[str], bool], *, pinned_too: bool = False
    ) -> list[str]:
        """Take the least recently used files out until a tier is within its limit; pinned ones may stay."""
        out: list[str] = []
        for key in sorted(self.of(tier), key=lambda key: self.of(tier)[key].used_at):
            if self.nbytes(tier) <= limit:
                break
            if take(key) and (pinned_too or not self._state.is_pinned(key)):
                self.leave(tier, key)
                out.append(key)
        return out
