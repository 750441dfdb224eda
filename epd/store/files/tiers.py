"""The files of both tiers: where an embedding lies, whether it is right, and how it is opened."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from epd.contracts.embedding import EmbeddingRef
from epd.contracts.errors import NotFound
from epd.contracts.responses import Tier
from epd.store.files.embedding_file import EmbeddingFile, checksum_of, open_regular, read_header
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.values import Indexed


class TierFiles:
    """L1, and L2 where there is one."""

    def __init__(self, l1: EmbeddingFolder, l2: EmbeddingFolder | None = None) -> None:
        """Folders that all processes share."""
        self.l1 = l1
        self.l2 = l2

    @property
    def tiers(self) -> int:
        """How many there are."""
        return 1 if self.l2 is None else 2

    def path(self, key: str) -> Path:
        """Where an embedding lies; in L1 when it lies nowhere. Raises ``NotFound`` for what is no key."""
        first = self.l1.path(key)
        if self.l2 is None or first.exists():
            return first
        second = self.l2.path(key)
        return second if second.exists() else first

    def open(self, key: str) -> tuple[EmbeddingFile, BinaryIO]:
        """An embedding's file, held open, and what its header says; L1 first.

        A file may move while it is looked for, so L1 is looked at once more after L2.

        Raises:
            NotFound: it lies nowhere, or is damaged.
        """
        folders = (self.l1,) if self.l2 is None else (self.l1, self.l2, self.l1)
        for folder in folders:
            with suppress(FileNotFoundError):
                return _opened(folder.path(key))
        raise NotFound("the embedding was evicted")

    def check(self, ref: EmbeddingRef, indexed: Indexed) -> bool:
        """False when the index names a file in L1 that is not right, while the one in L2 is.

        Raises:
            NotFound: no file is right.
        """
        trouble = NotFound("the index names no file")
        if indexed.in_l1:
            try:
                self.l1.check(ref)
                return True
            except NotFound as error:
                trouble = error
        if self.l2 is None or not indexed.checksum:
            raise trouble
        _check_whole(self.l2, ref, indexed.checksum)
        return not indexed.in_l1

    def remove(self, key: str) -> int:
        """Delete an embedding's files; how many there were. A reader that has one open keeps it."""
        return sum(folder.remove(key) for folder in self._folders())

    def folder(self, tier: Tier) -> EmbeddingFolder | None:
        """The folder of a tier, None where there is none."""
        return self.l1 if tier is Tier.L1 else self.l2

    def _folders(self) -> list[EmbeddingFolder]:
        return [self.l1] if self.l2 is None else [self.l1, self.l2]


def _opened(path: Path) -> tuple[EmbeddingFile, BinaryIO]:
    """A file and its header; raises ``FileNotFoundError`` when it is not there, ``NotFound`` when damaged."""
    with ExitStack() as closing:
        try:
            file = closing.enter_context(open_regular(path))
            stored = read_header(path, file)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise NotFound(f"embedding file: {error.strerror}") from error
        closing.pop_all()
        return stored, file


def _check_whole(folder: EmbeddingFolder, ref: EmbeddingRef, checksum: str) -> None:
    """A file of L2 has to be the one that was copied there, bit by bit."""
    try:
        with open_regular(folder.path(ref.key), buffered=False) as file:
            found = checksum_of(file)
    except OSError as error:
        raise NotFound(f"embedding file in L2: {error.strerror}") from error
    if found != checksum:
        raise NotFound("embedding file in L2 is not what was written")
    folder.check(ref)


#: Members that one step of an eviction looks at, so that a script stays short.
MAX_WALK = 1000

#: Beyond this share of its limit L1 overflows into L2. What is not in L2 yet when the limit itself is reached
#: is lost, as without L2: the rest is the time that copying has.
_TARGET = 7 / 8


@dataclass(frozen=True, slots=True)
class TierLimits:
    """``l2`` is None where there is no second tier."""

    l1: int
    l2: int | None = None

    @property
    def tiers(self) -> int:
        """How many there are."""
        return 1 if self.l2 is None else 2

    @property
    def l1_target(self) -> int:
        """What L1 holds at most once the mover is through."""
        return int(self.l1 * _TARGET)
