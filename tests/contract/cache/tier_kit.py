"""A store with two small tiers, and the steps that its tests share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epd.store.files.embedding_format import FILE_NAME
from epd.store.open import Store
from tests.contract.store_values import HIDDEN, data_of, entry_of, key_of, put_embedding
from tests.store_kit import MakeStore

MIB = 1 << 20
ROWS_OF_A_QUARTER = MIB // 4 // (HIDDEN * 4)
#: Of four quarters L1 keeps three: the fourth is beyond its target of seven eighths.
KEPT = 3


@dataclass(frozen=True)
class Tiers:
    """L1 of four quarters of a MiB, and L2."""

    store: Store
    l1: Path
    l2: Path

    def put(self, *numbers: int) -> list[str]:
        """Make embeddings of a quarter each, one used after the other; their keys."""
        for number in numbers:
            put_embedding(self.store, key_of(number), ROWS_OF_A_QUARTER)
            time.sleep(0.002)  # last uses differ by a millisecond
        return [key_of(number) for number in numbers]

    def settle(self) -> None:
        """Move until nothing is left to move."""
        for _ in range(50):
            moved = self.store.embeddings.move(5)
            if not (moved.promoted or moved.demoted or moved.more):
                return
        raise AssertionError("the tiers do not come to rest")

    def hits(self, keys: Sequence[str]) -> list[bool]:
        return [entry is not None for entry in self.store.embeddings.lookup(keys)]

    def names(self, root: Path) -> set[str]:
        """Keys that have a file below a root; nothing else lies there."""
        files = {path for path in root.rglob("*") if path.is_file()}
        assert {path.name for path in files} <= {FILE_NAME}
        return {path.parent.name for path in files}

    def file(self, root: Path, key: str) -> Path:
        return root / key / FILE_NAME

    def is_right(self, key: str) -> bool:
        """What is read is what was put."""
        stored, file = self.store.embeddings.open(key)
        with file:
            file.seek(stored.offset)
            return file.read() == bytes(data_of(entry_of(key, ROWS_OF_A_QUARTER)))


def two_tiers(make_store: MakeStore, folder: Path, **changes: object) -> Tiers:
    """A store with both tiers below a folder; L2 takes eight quarters."""
    settings = {"embedding_bytes": MIB, "l2_bytes": 2 * MIB, "embedding_dir": folder / "l1"} | changes
    return Tiers(make_store(l2_dir=folder / "l2", **settings), folder / "l1", folder / "l2")
