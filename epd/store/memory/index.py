"""The index of embeddings in one process: what ``lua/lib_lru.lua`` and its users are on the server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from epd.contracts.cache import CacheTotals, Tier, TierStats
from epd.contracts.metadata import Entry
from epd.store.entry_text import entry_text, read_entry
from epd.store.index import Demotion, Indexed, TierWork
from epd.store.memory.state import IndexEntry, MemoryState, Pin, TierFile
from epd.store.memory.tier_book import TierBook
from epd.store.tier_limits import TierLimits
from epd.store.values import CacheEvent, CachePage, CacheRow, StoreStats


class MemoryIndex:
    """``EmbeddingIndex`` over shared memory state, and what flights write to it."""

    def __init__(self, state: MemoryState, limits: TierLimits, *, ttl: float) -> None:
        """``ttl`` is the seconds that an entry lives."""
        self._state = state
        self._book = TierBook(state)
        self._limits = limits
        self._ttl = ttl

    def has(self, key: str) -> bool:
        """Whether the entry is there."""
        return self._book.has(key)

    def put(self, entry: Entry) -> None:
        """Write an entry, or write it over, its file in L1. Hold the lock."""
        key, now = entry.ref.key, time.time()
        file = TierFile(entry.ref.nbytes, now)
        if any(self._book.of(tier).get(key, file).nbytes != file.nbytes for tier in Tier):
            self._book.drop(key)
        self._state.entries[key] = IndexEntry(entry_text(entry), now + self._ttl)
        self._book.name(Tier.L1, key, file)

    def evict(self, spare: AbstractSet[str], *, pinned_too: bool) -> list[str]:
        """Take the oldest out of L1 until within its limit; ``spare`` goes last.

        With ``pinned_too`` pinned ones go before it, where all others are; else they stay. Hold the lock.
        """
        limit = self._limits.l1

        def is_old(key: str) -> bool:
            return key not in spare

        out = self._book.walk(Tier.L1, limit, is_old)
        if pinned_too:
            out += self._book.walk(Tier.L1, limit, is_old, pinned_too=True)
        out += self._book.walk(Tier.L1, limit, lambda key: True, pinned_too=pinned_too)
        self._count_evicted(Tier.L1, out)
        return out

    def read(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Indexed]:
        """What is known of keys."""
        with self._state.lock:
            found = [self._read(key) for key in keys]
            if counted:
                for one in found:
                    self._state.cache_totals["hits_l1" if one.in_l1 else "hits_l2"] += one.text is not None
            if lease:
                self.pin(keys, lease, holder)
        return found

    def remove(self, keys: Sequence[str]) -> tuple[int, list[str]]:
        """Take entries out; how many there were, and those that a pin holds."""
        with self._state.lock:
            gone = [key for key in keys if self._book.drop(key)]
            return len(gone), [key for key in gone if self._state.is_pinned(key)]

    def leave(self, tier: Tier, keys: Sequence[str]) -> None:
        """Files of a tier are of no use any more."""
        with self._state.lock:
            for key in keys:
                self._book.leave(tier, key)

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """Keep embeddings from being evicted or swept for that long; False where there is none."""
        now = time.time()
        with self._state.lock:
            self._state.pins = {key: pin for key, pin in self._state.pins.items() if pin.until > now}
            there = [self.has(key) for key in keys]
            for key, is_there in zip(keys, there, strict=True):
                if is_there:
                    before = self._state.pins.get(key, Pin(0.0, holder))
                    shared = "" if before.holder != holder else holder
                    self._state.pins[key] = Pin(max(now + seconds, before.until), shared)
                    self._book.touch(key)
        return there

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """End a holder's pins, where nobody else held them meanwhile."""
        with self._state.lock:
            for key in keys:
                pin = self._state.pins.get(key)
                if holder and pin is not None and pin.holder == holder:
                    del self._state.pins[key]

    def stats(self) -> StoreStats:
        """Sizes and totals."""
        with self._state.lock:
            second = self._limits.l2
            return StoreStats(
                entries=len(self._book.of(Tier.L1)),
                nbytes=self._book.nbytes(Tier.L1),
                limit=self._limits.l1,
                l2=None
                if second is None
                else TierStats(
                    entries=len(self._book.of(Tier.L2)), nbytes=self._book.nbytes(Tier.L2), limit=second
                ),
                totals=CacheTotals(**self._state.cache_totals),
            )

    def unnamed(self, tier: Tier, keys: Sequence[str]) -> list[str]:
        """Those of the keys that a tier does not name and no pin holds."""
        with self._state.lock:
            named = self._book.of(tier)
            return [key for key in keys if key not in named and not self._state.is_pinned(key)]

    def scan(self, cursor: str | None, limit: int) -> CachePage:
        """The next entries in the order of their keys."""
        with self._state.lock:
            keys = sorted(key for key in self._state.entries if cursor is None or key > cursor)
            rows = [self._row(key) for key in keys[:limit] if self.has(key)]
        return CachePage(tuple(rows), keys[limit - 1] if len(keys) > limit else None)

    def work(self, mover: str, *, lease: float, most: int) -> TierWork | None:
        """What a mover should do next; None while another moves."""
        now = time.time()
        with self._state.lock:
            holder, until = self._state.mover
            if holder != mover and until > now:
                return None
            self._state.mover = (mover, now + lease)
            return TierWork(self._promotions(most), *self._demotions(most))

    def demoted(self, key: str, checksum: str) -> Demotion:
        """A file was copied to L2."""
        with self._state.lock:
            first = self._book.of(Tier.L1).get(key)
            if first is None or not self.has(key):
                return Demotion(taken=False, left_l1=False)
            self._state.cache_totals["demotions"] += key not in self._book.of(Tier.L2)
            self._book.name(Tier.L2, key, TierFile(first.nbytes, first.used_at, checksum))
            left = self._book.nbytes(Tier.L1) > self._limits.l1_target and not self._state.is_pinned(key)
            if left:
                self._book.leave(Tier.L1, key)
                self._state.cache_totals["evicted_l1"] += 1
            evicted = self._book.walk(Tier.L2, self._limits.l2 or 0, lambda _: True)
            self._count_evicted(Tier.L2, evicted)
            return Demotion(taken=True, left_l1=left, evicted=tuple(evicted))

    def promoted(self, key: str) -> tuple[bool, list[str]]:
        """A file was copied to L1."""
        with self._state.lock:
            second = self._book.of(Tier.L2).get(key)
            taken = second is not None and self.has(key)
            if second is not None and taken:
                self._state.cache_totals["promotions"] += key not in self._book.of(Tier.L1)
                self._book.name(Tier.L1, key, TierFile(second.nbytes, time.time()))
            return taken, self.evict({key}, pinned_too=False)

    def count(self, event: CacheEvent, amount: int = 1) -> None:
        """Add to the totals."""
        with self._state.lock:
            self._state.cache_totals[event.value] += amount

    def _count_evicted(self, tier: Tier, keys: Sequence[str]) -> None:
        """Those that left a tier for its limit; as dropped too where the other one does not have them."""
        other = self._book.of(Tier.L2 if tier is Tier.L1 else Tier.L1)
        self._state.cache_totals[f"evicted_{tier.value}"] += len(keys)
        self._state.cache_totals["dropped"] += sum(key not in other for key in keys)

    def _read(self, key: str) -> Indexed:
        self._book.touch(key)
        text = self._state.entries[key].text if self.has(key) else None
        second = self._book.of(Tier.L2).get(key)
        if self._limits.l2 is None or second is None:
            return Indexed(text)
        in_l1 = key in self._book.of(Tier.L1)
        if not in_l1:
            self._state.wanted_in_l1.setdefault(key)
        return Indexed(text, in_l1, second.checksum)

    def _promotions(self, most: int) -> tuple[tuple[str, str], ...]:
        wanted = list(self._state.wanted_in_l1)[:most]
        for key in wanted:
            del self._state.wanted_in_l1[key]
        first, second = self._book.of(Tier.L1), self._book.of(Tier.L2)
        return tuple(
            (key, second[key].checksum)
            for key in wanted
            if key in second and key not in first and self.has(key)
        )

    def _demotions(self, most: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What to copy to L2, and what left L1 at once: L2 has it too, or it is over."""
        demote: list[str] = []
        planned = 0

        def take(key: str) -> bool:
            nonlocal planned
            room = self._book.nbytes(Tier.L1) - planned <= self._limits.l1_target
            if len(demote) >= most or room or self._state.is_pinned(key):
                return False
            if key in self._book.of(Tier.L2) or not self.has(key):
                return True
            demote.append(key)
            planned += self._book.of(Tier.L1)[key].nbytes
            return False

        left = self._book.walk(Tier.L1, self._limits.l1_target, take)
        self._state.cache_totals["evicted_l1"] += len(left)
        return tuple(demote), tuple(left)

    def _row(self, key: str) -> CacheRow:
        files = {tier: file for tier in Tier if (file := self._book.of(tier).get(key)) is not None}
        return CacheRow(
            entry=read_entry(key, self._state.entries[key].text),
            tiers=tuple(files),
            used_at=max((file.used_at for file in files.values()), default=0.0),
            pinned=self._state.is_pinned(key),
        )
