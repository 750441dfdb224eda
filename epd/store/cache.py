"""The protocol of the embedding cache. All calls are bounded in time, as those of ``epd.store.base``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from epd.contracts.metadata import EmbeddingRef, Entry
from epd.store.embedding_file import EmbeddingFile
from epd.store.values import CachePage, Moved, StoreStats


class Embeddings(Protocol):
    """Embedding files and their index. An entry holds the metadata, so both live and die together.

    Files lie in one or two tiers: L1 in memory, L2 on a disk or a shared file system. A hit is served from
    where its file lies; one that lies in L2 alone is checked whole before it counts.
    """

    def lookup(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Entry | None]:
        """Entries in the order of the keys; None is a miss. Refreshes last use. One round trip.

        ``counted``: hits appear in the totals; for whoever asks instead of making them. With a ``lease`` what
        is there is pinned for so many seconds, as ``pin`` does for a ``holder``.
        """
        ...

    def path(self, key: str) -> Path:
        """Where the file of an embedding lies, whether or not it is there."""
        ...

    def open(self, key: str) -> tuple[EmbeddingFile, BinaryIO]:
        """An embedding's file, held open, with what its header says; raises ``NotFound`` when it is gone."""
        ...

    def publish_file(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write the file once (temporary file, fsync, link); a file that is there already is kept."""
        ...

    def remove(self, keys: Sequence[str]) -> int:
        """Drop entries with their files, index first and files second; returns how many there were."""
        ...

    def forget(self, keys: Sequence[str]) -> int:
        """The same for what an operator takes out: the file of a pinned one stays readable for its lease."""
        ...

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """Keep embeddings from being evicted or swept for that long; False where there is none.

        A longer pin is not shortened. What is damaged is removed all the same. Where all others are pinned
        too, the one used least is evicted for a new one. One round trip.
        """
        ...

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """End the pins of a holder now; one that somebody else held meanwhile ends by itself alone."""
        ...

    def scan(self, cursor: str | None = None, *, limit: int = 100) -> CachePage:
        """About so many entries from a cursor on. One that stays all the time is given at least once."""
        ...

    def stats(self) -> StoreStats:
        """Sizes of the tiers, and what happened in them."""
        ...

    def move(self, seconds: float) -> Moved:
        """Move files between the tiers for about so many seconds at most; for one thread of the fleet."""
        ...

    def sweep(self, older_than: float) -> int:
        """Remove files that no entry names and nobody touched for that many seconds; returns how many."""
        ...
