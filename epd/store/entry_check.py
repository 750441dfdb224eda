"""What an index entry has to stand before it counts as a hit (DESIGN 4): checked at every read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from epd.contracts.errors import NotFound
from epd.contracts.metadata import Entry
from epd.store.entry_text import read_entry
from epd.store.tier_files import TierFiles
from epd.store.values import Indexed

logger = logging.getLogger(__name__)

LookAgain = Callable[[Sequence[str]], Sequence[Indexed]]


@dataclass(slots=True)
class Checked:
    """The entries in the order of the keys; ``bad`` cannot be used at all, ``lost`` are in L2 alone now."""

    entries: list[Entry | None] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def check_entries(
    keys: Sequence[str], known: Sequence[Indexed], files: TierFiles, look_again: LookAgain
) -> Checked:
    """Check what the index says of keys against the files; what cannot be used is None, and is logged.

    Rows, grid and token count agree by the validators of the contracts; a file has to be there, whole, of
    that key, shape and dtype, and with its checksum where it is read from L2. With two tiers the index is
    asked twice before an entry is given up: its file may have moved in between.
    """
    checked = Checked()
    for key, indexed in zip(keys, known, strict=True):
        entry = _checked(key, indexed, files, checked)
        if entry is None and files.tiers > 1 and indexed.text is not None:
            entry = _checked(key, look_again([key])[0], files, checked)
        if entry is None and indexed.text is not None:
            checked.bad.append(key)
        checked.entries.append(entry)
    return checked


def _checked(key: str, indexed: Indexed, files: TierFiles, checked: Checked) -> Entry | None:
    if indexed.text is None:
        return None
    try:
        entry = read_entry(key, indexed.text)
        if not files.check(entry.ref, indexed):
            checked.lost.append(key)
    except (ValueError, NotFound) as error:
        logger.warning("embedding %s is a miss: %s", key, error)
        return None
    return entry
