"""The index behind the embedding cache: keys, metadata and tiers, and not one byte of a file.

Each change is one script (``lua/index.lua`` and ``lua/mover.lua``). A file is written before the index names
it, and deleted after. So a process may die between any two steps: what is left is a file without a name,
which the sweep finds, never a name without its file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from epd.contracts.errors import InvalidRequest
from epd.contracts.responses import CacheTotals, Tier, TierStats
from epd.store import keys as names
from epd.store.cache.entry import read_entry
from epd.store.connection import Argument, Command, Connection
from epd.store.files.tiers import MAX_WALK, TierLimits
from epd.store.keys import milliseconds
from epd.store.scripts import Script
from epd.store.values import CacheEvent, CachePage, CacheRow, Demotion, Indexed, StoreStats, TierWork

logger = logging.getLogger(__name__)


def read_rows(connection: Connection, keys: Sequence[str]) -> tuple[CacheRow, ...]:
    """The rows of keys in one round trip; what is over or cannot be read is left out."""
    answers = connection.pipe(
        [
            ("MGET", *(names.embedding(key) for key in keys)),
            ("ZMSCORE", names.LRU, *keys),
            ("ZMSCORE", names.LRU2, *keys),
            ("MGET", *(names.pin(key) for key in keys)),
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


_LRU = {Tier.L1: names.LRU, Tier.L2: names.LRU2}


class EmbeddingIndex:
    """The index over one or two tiers, each bounded in bytes; the least recently used leaves first."""

    def __init__(self, connection: Connection, limits: TierLimits) -> None:
        """All processes on a server have the same limits."""
        self._connection = connection
        self._limits = limits

    def read(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Indexed]:
        """What is known of keys, in one round trip. Refreshes last use.

        With a ``lease`` (seconds) they are pinned as ``pin`` does. ``counted`` hits appear in the totals.
        What lies in L2 alone is queued to be copied back to L1.
        """
        lease_ms = milliseconds(lease) if lease else 0
        options: list[Argument] = [self._limits.tiers, int(counted), lease_ms, holder]
        answers = self._connection.run(Script.LOOKUP, [], [*options, *keys])
        rows = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        return [Indexed(text, bool(in_l1), checksum) for text, in_l1, checksum in rows]

    def remove(self, keys: Sequence[str]) -> tuple[int, list[str]]:
        """Take entries out; returns how many there were, and the keys of those that a pin holds."""
        if not keys:
            return 0, []
        answers = self._connection.run(Script.REMOVE, [], keys)
        pinned = [key for key, answer in zip(keys, answers, strict=True) if answer == 2]
        return sum(answer > 0 for answer in answers), pinned

    def leave(self, tier: Tier, keys: Sequence[str]) -> None:
        """Files of a tier cannot be used any more; an entry without any file is gone."""
        self._connection.run(Script.LEAVE, [], (2 if tier is Tier.L2 else 1, *keys))

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """Keep embeddings from being evicted or swept for that long; False where there is none."""
        pinned = self._connection.run(Script.PIN, [], (milliseconds(seconds), holder, *keys))
        return [bool(there) for there in pinned]

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """End a holder's pins, where nobody else held them meanwhile."""
        self._connection.run(Script.UNPIN, [], (holder, *keys))

    def stats(self) -> StoreStats:
        """Sizes of the tiers and totals, in one round trip."""
        commands: list[Command] = [("ZCARD", names.LRU), ("GET", names.LRU_BYTES)]
        commands += [("ZCARD", names.LRU2), ("GET", names.LRU2_BYTES), ("HGETALL", names.CACHE_TOTALS)]
        entries, nbytes, l2_entries, l2_nbytes, totals = self._connection.pipe(commands)
        second = self._limits.l2
        return StoreStats(
            entries=entries,
            nbytes=int(nbytes or 0),
            limit=self._limits.l1,
            l2=None
            if second is None
            else TierStats(entries=l2_entries, nbytes=int(l2_nbytes or 0), limit=second),
            totals=_totals(totals),
        )

    def unnamed(self, tier: Tier, keys: Sequence[str]) -> list[str]:
        """Those of the keys that a tier does not name and no pin holds."""
        if not keys:
            return []
        scores, pins = self._connection.pipe(
            [("ZMSCORE", _LRU[tier], *keys), ("MGET", *(names.pin(key) for key in keys))]
        )
        rows = zip(keys, scores, pins, strict=True)
        return [key for key, score, pin in rows if score is None and pin is None]

    def scan(self, cursor: str | None, limit: int) -> CachePage:
        """About ``limit`` entries from a cursor on. A server returns a small index whole.

        Raises:
            InvalidRequest: the cursor is not one that ``scan`` returned.
        """
        step = self._connection.call("HSCAN", names.LRU_SIZES, _server_cursor(cursor), "COUNT", limit)
        following, fields = str(step[0]), step[1]
        keys = list(fields if isinstance(fields, dict) else fields[::2])
        rows = read_rows(self._connection, keys) if keys else ()
        return CachePage(rows, None if following == "0" else following)

    def work(self, mover: str, *, lease: float, most: int) -> TierWork | None:
        """What a mover should do next, at most so many files of each kind; None while another moves.

        The caller that gets work is the only mover for ``lease`` seconds.
        """
        arguments = (mover, milliseconds(lease), self._limits.l1_target, most)
        answer = self._connection.run(Script.TIER_WORK, [], arguments)
        if not answer:
            return None
        promote, demote, left = answer
        pairs = zip(promote[::2], promote[1::2], strict=True)
        return TierWork(tuple(pairs), tuple(demote), tuple(left))

    def demoted(self, key: str, checksum: str) -> Demotion:
        """A file was copied to L2."""
        arguments = (key, checksum, self._limits.l1_target, self._limits.l2 or 0, MAX_WALK)
        state, *evicted = self._connection.run(Script.DEMOTED, [], arguments)
        return Demotion(taken=state > 0, left_l1=state == 2, evicted=tuple(evicted))

    def promoted(self, key: str) -> tuple[bool, list[str]]:
        """A file was copied to L1: whether that was taken, and the keys whose files in L1 may go for it."""
        taken, evicted = self._connection.pipe(
            [
                self._connection.script_command(Script.PROMOTED, [], (key,)),
                self.eviction([key], pinned_too=False),
            ]
        )
        return bool(taken), list(evicted)

    def count(self, event: CacheEvent, amount: int = 1) -> None:
        """Add to the totals what the index does not see by itself."""
        self._connection.call("HINCRBY", names.CACHE_TOTALS, event.value, amount)

    def eviction(self, spare: Sequence[str], *, pinned_too: bool) -> Command:
        """The command that holds the limit of L1; it answers with the keys whose files may go."""
        arguments: Command = (self._limits.l1, MAX_WALK, int(pinned_too), *spare)
        return self._connection.script_command(Script.EVICT, [], arguments)


def _server_cursor(cursor: str | None) -> str:
    """A cursor of ours; raises ``InvalidRequest`` for what no server ever gave."""
    text = cursor or "0"
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise InvalidRequest("cursor: not one of an answer")
    return text


def _totals(fields: Any) -> CacheTotals:
    """Totals; a server may give a hash as a list, and a later version of the code may count more."""
    if isinstance(fields, list):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    known = {name: int(value) for name, value in fields.items() if name in CacheTotals.model_fields}
    return CacheTotals(**known)
