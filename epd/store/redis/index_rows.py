"""Rows of the index for people: each entry with its tiers, its last use and whether a pin holds it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from epd.contracts.cache import Tier
from epd.store import keys as names
from epd.store.entry_text import read_entry
from epd.store.redis.connection import Connection
from epd.store.values import CacheRow

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
