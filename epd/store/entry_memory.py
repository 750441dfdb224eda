"""Entries as this process last read them, so that one that is asked for again is not parsed and opened again.

Every read still compares what can change: the text in the index, and inode, size and time of the file. A file
that was replaced, cut or written to differs in one of these, and is checked as if it had never been seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from epd.contracts.errors import NotFound
from epd.contracts.metadata import Entry
from epd.store.embedding_folder import EmbeddingFolder, FileStamp
from epd.store.entry_text import read_entry

#: Entries that are kept, some 3 KB each.
LIMIT = 4096


@dataclass(frozen=True, slots=True)
class _Known:
    text: str
    stamp: FileStamp
    entry: Entry


class EntryMemory:
    """Checks entries against the files of L1; not thread-safe, for one event loop."""

    def __init__(self, folder: EmbeddingFolder, *, limit: int = LIMIT) -> None:
        """Keep ``limit`` entries, the least recently used one goes."""
        self._folder = folder
        self._limit = limit
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def checked(self, key: str, text: str) -> Entry | None:
        """The entry of a text of the index, the same object while nothing has changed; None: not usable."""
        stamp = self._folder.stamp(key)
        known = self._known.get(key)
        if known is not None and (known.text, known.stamp) == (text, stamp):
            self._known.move_to_end(key)
            return known.entry
        try:
            entry = read_entry(key, text)
            self._folder.check(entry.ref)
        except (ValueError, NotFound):
            return None
        if stamp is not None:
            self._keep(key, _Known(text, stamp, entry))
        return entry

    def _keep(self, key: str, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


class EntryTexts:
    """A text for each entry, made once; for as long as an ``EntryMemory`` gives the same object."""

    def __init__(self, make: Callable[[Entry], str], *, limit: int = LIMIT) -> None:
        """``make`` gives the text of an entry; ``limit`` texts are kept."""
        self._make = make
        self._limit = limit
        self._known: OrderedDict[str, tuple[Entry, str]] = OrderedDict()

    def of(self, entry: Entry) -> str:
        """The text of an entry."""
        key = entry.ref.key
        known = self._known.get(key)
        if known is None or known[0] is not entry:
            known = self._known[key] = (entry, self._make(entry))
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known[1]
