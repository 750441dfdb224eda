"""The protocol of the index behind the embedding cache: keys, metadata and tiers, and not one byte of a file.

Each change is one atomic step. A file is written before the index names it, and deleted after. So a process
may die between any two steps: what is left is a file without a name, which the sweep finds, never a name
without its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from epd.contracts.cache import Tier
from epd.store.values import CacheEvent, CachePage, StoreStats


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the index says of a key: the text of its entry, and where its files lie.

    ``checksum`` is that of the file in L2, empty where it is not there.
    """

    text: str | None
    in_l1: bool = True
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class TierWork:
    """What to do next: (key, checksum) to copy to L1, keys to copy to L2, keys whose file in L1 may go."""

    promote: tuple[tuple[str, str], ...] = ()
    demote: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demotion:
    """What became of a copy in L2: ``taken`` by the index; ``left_l1``: the file in L1 may go.

    ``evicted``: keys that left L2 for it; their files there may go.
    """

    taken: bool
    left_l1: bool
    evicted: tuple[str, ...] = ()


class EmbeddingIndex(Protocol):
    """The index of embeddings over one or two tiers, each byte-bounded, least recently used first."""

    def read(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Indexed]:
        """What is known of keys, their last use refreshed; with a lease they are pinned for so many seconds.

        ``counted`` hits appear in the totals. What lies in L2 alone is wished back into L1.
        """
        ...

    def remove(self, keys: Sequence[str]) -> tuple[int, list[str]]:
        """Take entries out of the index; how many there were, and the keys of those that a pin holds."""
        ...

    def leave(self, tier: Tier, keys: Sequence[str]) -> None:
        """Files of a tier are of no use any more; an entry without any file is gone."""
        ...

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """As ``Embeddings.pin``."""
        ...

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """As ``Embeddings.unpin``."""
        ...

    def stats(self) -> StoreStats:
        """As ``Embeddings.stats``."""
        ...

    def unnamed(self, tier: Tier, keys: Sequence[str]) -> list[str]:
        """Those of the keys that a tier does not name and no pin holds."""
        ...

    def scan(self, cursor: str | None, limit: int) -> CachePage:
        """As ``Embeddings.scan``."""
        ...

    def work(self, mover: str, *, lease: float, most: int) -> TierWork | None:
        """What a mover should do next, at most so many files of each kind; None while another moves.

        Who is given work is the one mover for ``lease`` seconds.
        """
        ...

    def demoted(self, key: str, checksum: str) -> Demotion:
        """A file was copied to L2."""
        ...

    def promoted(self, key: str) -> tuple[bool, list[str]]:
        """A file was copied to L1: whether that was taken, and the keys whose files in L1 may go for it."""
        ...

    def count(self, event: CacheEvent, amount: int = 1) -> None:
        """Add to the totals what the index does not see by itself."""
        ...
