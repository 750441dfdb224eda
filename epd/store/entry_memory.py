"""Entries as this process last read them, so that one that is asked for again is not parsed and opened again.

Every read still compares what can change: the text in the index, and inode, size and time of the file. A file
that was replaced, cut or written to differs in one of these, and is checked as if it had never been seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epd.contracts.errors import NotFound
from epd.contracts.metadata import Entry
from epd.recent import Recent
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
        """Keep ``limit`` entries."""
        self._folder = folder
        self._known: Recent[str, _Known] = Recent(limit)

    def recalled(self, key: str) -> Entry | None:
        """The entry as it was last checked."""
        known = self._known.get(key)
        return None if known is None else known.entry

    def forget(self, key: str) -> None:
        """It is not there any more."""
        self._known.forget(key)

    def checked(self, key: str, text: str) -> Entry | None:
        """The entry of a text of the index, the same object while nothing has changed; None: not usable."""
        stamp = self._folder.stamp(key)
        known = self._known.get(key)
        if known is not None and (known.text, known.stamp) == (text, stamp):
            return known.entry
        try:
            entry = read_entry(key, text)
            self._folder.check(entry.ref)
        except (ValueError, NotFound):
            self.forget(key)
            return None
        if stamp is not None:
            self._known.put(key, _Known(text, stamp, entry))
        return entry


class EntryTexts:
    """A text for each entry, made once; for as long as an ``EntryMemory`` gives the same object."""

    def __init__(self, make: Callable[[Entry], str], *, limit: int = LIMIT) -> None:
        """``make`` gives the text of an entry; ``limit`` texts are kept."""
        self._make = make
        self._known: Recent[str, tuple[Entry, str]] = Recent(limit)

    def of(self, entry: Entry) -> str:
        """The text of an entry."""
        known = self._known.get(entry.ref.key)
        if known is not None and known[0] is entry:
            return known[1]
        text = self._make(entry)
        self._known.put(entry.ref.key, (entry, text))
        return text
