"""The index behind the embedding cache: entries and the tiers of their files, but never a byte of a file.

Every change is one script (``lua/index.lua`` and ``lua/mover.lua``). A file is written before the index names
it, and deleted after the index has dropped it. So a process that dies in between leaves a file without an
entry, which the sweep finds, and never an entry without its file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epd.contracts.errors import InvalidRequest
from epd.contracts.responses import CacheTotals, Tier, TierStats
from epd.store import keys as redis_keys
from epd.store.cache.entry import read_entry
from epd.store.connection import Connection, script_command
from epd.store.keys import milliseconds
from epd.store.scripts import Argument, Command, Script
from epd.store.values import CacheEvent, CachePage, CacheRow, Indexed, StoreStats

logger = logging.getLogger(__name__)

#: Members that one eviction looks at, so that its script takes little time.
MAX_VISITED = 1000

#: The share of its limit above which L1 overflows into L2. The rest of L1 gives time for copying: what has no
#: copy when L1 reaches its limit is lost, as without L2.
_L1_TARGET = 7 / 8
_LRU = {Tier.L1: redis_keys.LRU, Tier.L2: redis_keys.LRU2}


@dataclass(frozen=True, slots=True)
class TierLimits:
    """The limits of the tiers in bytes. ``l2`` is None if there is no second tier."""

    l1: int
    l2: int | None = None

    @property
    def tiers(self) -> int:
        """The number of tiers, 1 or 2."""
        return 1 if self.l2 is None else 2

    @property
    def l1_target(self) -> int:
        """The most bytes in L1 after the mover has done its work."""
        return int(self.l1 * _L1_TARGET)


@dataclass(frozen=True, slots=True)
class TierWork:
    """The mover's next work.

    ``promote`` has the (key, checksum) of files to copy to L1, ``demote`` the keys of files to copy to L2,
    and ``left`` the keys that have left L1, so that their files there can be deleted.
    """

    promote: tuple[tuple[str, str], ...] = ()
    demote: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demotion:
    """The result of a copy to L2.

    ``taken`` is false if the index did not want the copy. ``left_l1`` says that the file in L1 can be
    deleted, and ``evicted`` has the keys whose files in L2 can be.
    """

    taken: bool
    left_l1: bool
    evicted: tuple[str, ...] = ()


class EmbeddingIndex:
    """One or two tiers, each with a limit in bytes. The least recently used embeddings leave first."""

    def __init__(self, connection: Connection, limits: TierLimits) -> None:
        """All processes on a server must have the same limits."""
        self._connection = connection
        self._limits = limits

    def read(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Indexed]:
        """Read the rows of embeddings and refresh their last use. One round trip.

        A ``lease`` in seconds pins them, as ``pin`` does. ``counted`` hits appear in the totals. What only L2
        has is queued to be copied back to L1.
        """
        lease_ms = milliseconds(lease) if lease else 0
        options: list[Argument] = [self._limits.tiers, int(counted), lease_ms, holder]
        answers = self._connection.run(Script.LOOKUP, [], [*options, *keys])
        rows = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        return [Indexed(text, bool(in_l1), checksum) for text, in_l1, checksum in rows]

    def remove(self, keys: Sequence[str]) -> tuple[int, list[str]]:
        """Remove entries. Returns how many there were, and the keys of those that are pinned."""
        if not keys:
            return 0, []
        answers = self._connection.run(Script.REMOVE, [], keys)
        pinned = [key for key, answer in zip(keys, answers, strict=True) if answer == 2]
        return sum(answer > 0 for answer in answers), pinned

    def leave(self, tier: Tier, keys: Sequence[str]) -> None:
        """Remove keys from one tier, whose files are lost. An entry without any file is removed."""
        self._connection.run(Script.LEAVE, [], (2 if tier is Tier.L2 else 1, *keys))

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """Protect embeddings from eviction and sweeping. Returns for each whether it exists."""
        pinned = self._connection.run(Script.PIN, [], (milliseconds(seconds), holder, *keys))
        return [bool(found) for found in pinned]

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """End the pins of a holder, except those that had other holders, too."""
        self._connection.run(Script.UNPIN, [], (holder, *keys))

    def stats(self) -> StoreStats:
        """Return the sizes of the tiers, and the totals. One round trip."""
        entries, nbytes, l2_entries, l2_nbytes, totals = self._connection.pipe(
            [
                ("ZCARD", redis_keys.LRU),
                ("GET", redis_keys.LRU_BYTES),
                ("ZCARD", redis_keys.LRU2),
                ("GET", redis_keys.LRU2_BYTES),
                ("HGETALL", redis_keys.CACHE_TOTALS),
            ]
        )
        l2 = None
        if self._limits.l2 is not None:
            l2 = TierStats(entries=l2_entries, nbytes=int(l2_nbytes or 0), limit=self._limits.l2)
        return StoreStats(
            entries=entries,
            nbytes=int(nbytes or 0),
            limit=self._limits.l1,
            l2=l2,
            totals=_totals(totals),
        )

    def unnamed(self, tier: Tier, keys: Sequence[str]) -> list[str]:
        """Return those of the keys that a tier does not name and no pin protects."""
        if not keys:
            return []
        scores, pins = self._connection.pipe(
            [("ZMSCORE", _LRU[tier], *keys), ("MGET", *(redis_keys.pin(key) for key in keys))]
        )
        rows = zip(keys, scores, pins, strict=True)
        return [key for key, score, pin in rows if score is None and pin is None]

    def scan(self, cursor: str | None, limit: int) -> CachePage:
        """Return about ``limit`` entries from a cursor on. A small index is returned as a whole.

        Raises:
            InvalidRequest: ``scan`` cannot have returned this cursor.
        """
        step = self._connection.call("HSCAN", redis_keys.LRU_SIZES, _server_cursor(cursor), "COUNT", limit)
        following, fields = str(step[0]), step[1]
        keys = list(fields if isinstance(fields, dict) else fields[::2])
        rows = _read_rows(self._connection, keys) if keys else ()
        return CachePage(rows, None if following == "0" else following)

    def work(self, mover: str, *, lease: float, most: int) -> TierWork | None:
        """Return the next work for a mover; None while another process moves.

        Args:
            mover: The name of the mover.
            lease: Seconds for which it is the only one, if it gets work.
            most: Files of each kind.
        """
        arguments = (mover, milliseconds(lease), self._limits.l1_target, most)
        answer = self._connection.run(Script.TIER_WORK, [], arguments)
        if not answer:
            return None
        promote, demote, left = answer
        pairs = zip(promote[::2], promote[1::2], strict=True)
        return TierWork(tuple(pairs), tuple(demote), tuple(left))

    def demoted(self, key: str, checksum: str) -> Demotion:
        """Note that a file was copied to L2."""
        arguments = (key, checksum, self._limits.l1_target, self._limits.l2 or 0, MAX_VISITED)
        state, *evicted = self._connection.run(Script.DEMOTED, [], arguments)
        return Demotion(taken=state > 0, left_l1=state == 2, evicted=tuple(evicted))

    def promoted(self, key: str) -> tuple[bool, list[str]]:
        """Note that a file was copied to L1.

        Returns:
            Whether the index wanted the copy, and the keys evicted for it, whose files in L1 can be deleted.
        """
        taken, evicted = self._connection.pipe(
            [script_command(Script.PROMOTED, [], (key,)), self.evict_command([key], pinned_too=False)]
        )
        return bool(taken), list(evicted)

    def count(self, event: CacheEvent, amount: int = 1) -> None:
        """Add to the totals an event that the index does not see itself."""
        self._connection.call("HINCRBY", redis_keys.CACHE_TOTALS, event.value, amount)

    def evict_command(self, spare: Sequence[str], *, pinned_too: bool) -> Command:
        """The command that evicts from L1 what is over its limit.

        It answers with the evicted keys, whose files can be deleted. Keys in ``spare`` are evicted last, and
        pinned ones only with ``pinned_too``.
        """
        arguments: Command = (self._limits.l1, MAX_VISITED, int(pinned_too), *spare)
        return script_command(Script.EVICT, [], arguments)


def _read_rows(connection: Connection, keys: Sequence[str]) -> tuple[CacheRow, ...]:
    """The rows of keys, without those that have expired or cannot be read. One round trip."""
    answers = connection.pipe(
        [
            ("MGET", *(redis_keys.embedding(key) for key in keys)),
            ("ZMSCORE", redis_keys.LRU, *keys),
            ("ZMSCORE", redis_keys.LRU2, *keys),
            ("MGET", *(redis_keys.pin(key) for key in keys)),
        ]
    )
    rows = (_row(*each) for each in zip(keys, *answers, strict=True))
    return tuple(row for row in rows if row is not None)


def _row(
    key: str, text: str | None, in_l1: float | None, in_l2: float | None, pin: str | None
) -> CacheRow | None:
    if text is None:
        return None
    try:
        entry = read_entry(key, text)
    except ValueError as error:
        logger.warning("embedding %s cannot be read: %s", key, error)
        return None
    uses = {Tier.L1: in_l1, Tier.L2: in_l2}
    tiers = tuple(tier for tier, used in uses.items() if used is not None)
    used_at = max((float(used) for used in uses.values() if used is not None), default=0.0) / 1000
    return CacheRow(entry, tiers, used_at, pinned=pin is not None)


def _server_cursor(cursor: str | None) -> str:
    """The server's cursor; raises ``InvalidRequest`` for text that is not one."""
    text = cursor or "0"
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise InvalidRequest("cursor: not one of an answer")
    return text


def _totals(fields: Any) -> CacheTotals:
    """Totals from a hash, which some servers return as a list. A later version may count more events."""
    if isinstance(fields, list):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    known = {name: int(value) for name, value in fields.items() if name in CacheTotals.model_fields}
    return CacheTotals(**known)
