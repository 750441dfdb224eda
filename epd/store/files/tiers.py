"""The embedding files of both tiers: where a file lies, whether it is good, and how it is opened."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from epd.contracts.embedding import EmbeddingRef
from epd.contracts.errors import NotFound
from epd.contracts.responses import Tier
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.files.embedding_format import EmbeddingFile, checksum_of, open_regular, read_header
from epd.store.values import Indexed


class TierFiles:
    """The folders of L1 and, if there is one, L2. All processes share them."""

    def __init__(self, l1: EmbeddingFolder, l2: EmbeddingFolder | None = None) -> None:
        self.l1 = l1
        self.l2 = l2

    @property
    def tiers(self) -> int:
        """The number of tiers, 1 or 2."""
        return 1 if self.l2 is None else 2

    def path(self, key: str) -> Path:
        """Where the file of an embedding lies; its place in L1 if it is in no tier.

        Raises:
            NotFound: the key is not well-formed.
        """
        first = self.l1.path(key)
        if self.l2 is None or first.exists():
            return first
        second = self.l2.path(key)
        return second if second.exists() else first

    def open(self, key: str) -> tuple[EmbeddingFile, BinaryIO]:
        """Open the file of an embedding and read its header.

        A file may move between the tiers while it is looked for, so L1 is tried again after L2.

        Raises:
            NotFound: it is in no tier, or is damaged.
        """
        folders = (self.l1,) if self.l2 is None else (self.l1, self.l2, self.l1)
        for folder in folders:
            with suppress(FileNotFoundError):
                return _opened(folder.path(key))
        raise NotFound("the embedding was evicted")

    def check(self, ref: EmbeddingRef, indexed: Indexed) -> bool:
        """Check that an embedding has a good file in a tier that the index names.

        Returns:
            False if the file in L1 is bad while the one in L2 is good.

        Raises:
            NotFound: there is no good file.
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
        """Delete the files of an embedding. Returns how many there were. Open files stay readable."""
        return sum(folder.remove(key) for folder in self._folders())

    def folder(self, tier: Tier) -> EmbeddingFolder | None:
        """The folder of a tier; None if there is no such tier."""
        return self.l1 if tier is Tier.L1 else self.l2

    def _folders(self) -> list[EmbeddingFolder]:
        return [self.l1] if self.l2 is None else [self.l1, self.l2]


def _opened(path: Path) -> tuple[EmbeddingFile, BinaryIO]:
    """Open a file and read its header.

    Raises:
        FileNotFoundError: there is no such file.
        NotFound: it is damaged or cannot be read.
    """
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
    """Check that a file in L2 is, bit by bit, the one that was copied there; raises ``NotFound``."""
    try:
        with open_regular(folder.path(ref.key), buffered=False) as file:
            found = checksum_of(file)
    except OSError as error:
        raise NotFound(f"embedding file in L2: {error.strerror}") from error
    if found != checksum:
        raise NotFound("embedding file in L2 is not what was written")
    folder.check(ref)
