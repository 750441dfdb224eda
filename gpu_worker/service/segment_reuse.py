"""What of an item need not be encoded: the plan of the whole, its segments' keys, and the known rows."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import NotFound
from epd.contracts.job import SegmentUse
from epd.contracts.wire import STAGE
from epd.store.cache.embeddings import Embeddings
from epd.store.files.embedding_file import ITEM_BYTES, EmbeddingFile
from epd.store.records import SegmentPlace
from gpu_worker.engine.slot import Encoded, Piece, piece_of

if TYPE_CHECKING:
    from gpu_worker.encoders.base import ItemPlan


@dataclass(frozen=True, slots=True)
class HeldRows:
    """``nbytes`` bytes of rows at ``offset`` of an open file; ``checksum`` is their crc32."""

    file: BinaryIO
    offset: int
    nbytes: int
    checksum: int

    def read_into(self, target: memoryview) -> None:
        """Copy the rows; raises ``OSError`` where they are not those that were noted."""
        read = os.preadv(self.file.fileno(), [target], self.offset)
        if read != self.nbytes or zlib.crc32(target) != self.checksum:
            raise OSError(f"{read} bytes are not the rows that were noted")

    def is_intact(self) -> bool:
        """Whether the bytes are those that were noted."""
        with suppress(OSError):
            self.read_into(memoryview(bytearray(self.nbytes)))
            return True
        return False


def hold_rows(
    wanted: Mapping[int, SegmentPlace], tokens: Sequence[int], card: EncoderCard, embeddings: Embeddings
) -> dict[int, HeldRows]:
    """The rows of segments, by segment, as far as their places hold true; the others are missing.

    A place counts when its embedding is in the index, its file is whole and of this encoder's width and
    dtype, and the bytes are those that were noted. One round trip.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    parents = list(dict.fromkeys(place.parent for place in wanted.values()))
    there = [key for key, entry in zip(parents, embeddings.lookup(parents), strict=True) if entry is not None]
    files = {key: opened for key in there if (opened := _open(embeddings, key, card)) is not None}
    held: dict[int, HeldRows] = {}
    for index, place in wanted.items():
        if place.parent in files and place.rows == tokens[index]:
            rows = _rows(*files[place.parent], place)
            if rows is not None and rows.is_intact():
                held[index] = rows
    used = {rows.file for rows in held.values()}
    for _, file in files.values():
        if file not in used:
            file.close()
    return held


def _open(embeddings: Embeddings, key: str, card: EncoderCard) -> tuple[EmbeddingFile, BinaryIO] | None:
    try:
        header, file = embeddings.open(key)
    except NotFound:
        return None
    if (header.shape[1], header.dtype) == (card.hidden, card.dtype):
        return header, file
    file.close()
    return None


def _rows(header: EmbeddingFile, file: BinaryIO, place: SegmentPlace) -> HeldRows | None:
    try:
        offset, nbytes = header.rows(place.start, place.start + place.rows)
    except ValueError:
        return None
    return HeldRows(file, offset, nbytes, place.checksum)


@dataclass(frozen=True, slots=True)
class Reuse:
    """One item's segments. ``held`` are rows by segment; ``row_bytes`` is the size of one row."""

    plan: ItemPlan
    keys: tuple[str, ...]
    hidden: int
    row_bytes: int
    held: Mapping[int, HeldRows] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(
        cls, plan: ItemPlan, keys: tuple[str, ...], card: EncoderCard, held: Mapping[int, HeldRows]
    ) -> Reuse:
        """For an encoder of this card."""
        return cls(plan, keys, card.hidden, card.hidden * ITEM_BYTES[card.dtype], held)

    @property
    def missing(self) -> tuple[int, ...]:
        """The segments to encode; one that gives no row is not among them."""
        tokens = self.plan.tokens_of_segments()
        return tuple(index for index, count in enumerate(tokens) if count and index not in self.held)

    @property
    def piece(self) -> Piece | None:
        """What the engine is to run; None: the item as it is."""
        return piece_of(self.plan, self.missing) if self.held else None

    @property
    def use(self) -> SegmentUse:
        """How many are there, and how many are encoded."""
        return SegmentUse(cached=len(self.held), encoded=len(self.missing))

    @property
    def complete(self) -> bool:
        """Whether nothing is left to encode."""
        return not self.missing

    def nothing_new(self) -> Encoded:
        """The outcome of a piece of no segments, for an item whose rows are all known."""
        return Encoded(
            plan=self.plan,
            rows=memoryview(b""),
            hidden=self.hidden,
            batch_size=0,
            timings={STAGE: self.seconds},
        )

    def joined(self, encoded: Encoded) -> Encoded:
        """The whole item from known rows and those of its piece, in the order of its segments.

        Known rows are the bytes of their first encode.

        Raises:
            OSError: known rows cannot be read.
        """
        if not self.held:
            return encoded
        rows = memoryview(bytearray(self.plan.tokens * self.row_bytes))
        at = taken = 0
        for index, count in enumerate(self.plan.tokens_of_segments()):
            part = rows[at : at + count * self.row_bytes]
            if index in self.held:
                self.held[index].read_into(part)
            else:
                part[:] = encoded.rows[taken : taken + len(part)]
                taken += len(part)
            at += len(part)
        return replace(encoded, plan=self.plan, rows=rows)

    def places(self, parent: str, rows: memoryview) -> dict[str, SegmentPlace]:
        """Where the segments lie in the item's own embedding. Equal segments are noted once."""
        places: dict[str, SegmentPlace] = {}
        start = 0
        for index, count in enumerate(self.plan.tokens_of_segments()):
            part = rows[start * self.row_bytes : (start + count) * self.row_bytes]
            known = self.held.get(index)
            if count and self.keys[index] not in places:
                checksum = zlib.crc32(part) if known is None else known.checksum
                places[self.keys[index]] = SegmentPlace(parent, start, count, checksum)
            start += count
        return places

    def close(self) -> None:
        """Let the files of the known rows go."""
        for rows in self.held.values():
            rows.file.close()
