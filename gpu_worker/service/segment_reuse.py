"""Which rows of an item need no encode: its plan, the keys of its segments, and their cached rows.

A segment is a run of frames or samples that an encoder treats alone. Its rows may be cached as part of the
embedding of another item, the segment's parent.
"""

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
from epd.contracts.timings import STAGE
from epd.store.cache.embeddings import Embeddings
from epd.store.files.embedding_format import ITEM_BYTES, EmbeddingFile
from epd.store.records import SegmentPlace
from gpu_worker.engine.slot import Encoded, Piece, piece_of

if TYPE_CHECKING:
    from gpu_worker.encoders.base import ItemPlan


@dataclass(frozen=True, slots=True)
class SegmentReuse:
    """The segments of one item.

    Attributes:
        plan: the plan of the whole item.
        keys: one per segment, in order.
        hidden: the width of a row.
        row_bytes: the size of a row.
        cached: the rows of cached segments, by the segment's index.
        seconds: how long the search for them took.
    """

    plan: ItemPlan
    keys: tuple[str, ...]
    hidden: int
    row_bytes: int
    cached: Mapping[int, CachedRows] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(
        cls, plan: ItemPlan, keys: tuple[str, ...], card: EncoderCard, cached: Mapping[int, CachedRows]
    ) -> SegmentReuse:
        """Take width and size of a row from the encoder's card."""
        return cls(plan, keys, card.hidden, card.hidden * ITEM_BYTES[card.dtype], cached)

    @property
    def missing(self) -> tuple[int, ...]:
        """The segments to encode, without those that give no row."""
        tokens = self.plan.tokens_of_segments()
        return tuple(index for index, count in enumerate(tokens) if count and index not in self.cached)

    @property
    def piece(self) -> Piece | None:
        """What the engine has to encode; None is the whole item."""
        return piece_of(self.plan, self.missing) if self.cached else None

    @property
    def use(self) -> SegmentUse:
        """How many segments are cached, and how many are encoded."""
        return SegmentUse(cached=len(self.cached), encoded=len(self.missing))

    @property
    def complete(self) -> bool:
        """Whether all rows are cached."""
        return not self.missing

    def without_forward(self) -> Encoded:
        """The outcome of an empty piece, for an item whose rows are all cached."""
        return Encoded(
            plan=self.plan,
            rows=memoryview(b""),
            hidden=self.hidden,
            batch_size=0,
            timings={STAGE: self.seconds},
        )

    def join(self, encoded: Encoded) -> Encoded:
        """Join cached rows and those of the encoded piece to the whole item, in the order of its segments.

        Cached rows are the exact bytes of their first encode.

        Raises:
            OSError: cached rows cannot be read.
        """
        if not self.cached:
            return encoded
        rows = memoryview(bytearray(self.plan.tokens * self.row_bytes))
        at = taken = 0
        for index, count in enumerate(self.plan.tokens_of_segments()):
            part = rows[at : at + count * self.row_bytes]
            if index in self.cached:
                self.cached[index].read_into(part)
            else:
                part[:] = encoded.rows[taken : taken + len(part)]
                taken += len(part)
            at += len(part)
        return replace(encoded, plan=self.plan, rows=rows)

    def places(self, parent: str, rows: memoryview) -> dict[str, SegmentPlace]:
        """Where each segment lies in the item's own embedding ``parent``, by its key.

        Of equal segments, only the first is listed.
        """
        places: dict[str, SegmentPlace] = {}
        start = 0
        for index, count in enumerate(self.plan.tokens_of_segments()):
            part = rows[start * self.row_bytes : (start + count) * self.row_bytes]
            cached = self.cached.get(index)
            if count and self.keys[index] not in places:
                checksum = zlib.crc32(part) if cached is None else cached.checksum
                places[self.keys[index]] = SegmentPlace(parent, start, count, checksum)
            start += count
        return places

    def close(self) -> None:
        """Close the files of the cached rows."""
        for rows in self.cached.values():
            rows.file.close()


@dataclass(frozen=True, slots=True)
class CachedRows:
    """``nbytes`` bytes of rows at ``offset`` of an open file; ``checksum`` is their crc32."""

    file: BinaryIO
    offset: int
    nbytes: int
    checksum: int

    def read_into(self, target: memoryview) -> None:
        """Copy the rows.

        Raises:
            OSError: they cannot be read, or the bytes do not match the checksum.
        """
        read = os.preadv(self.file.fileno(), [target], self.offset)
        if read != self.nbytes or zlib.crc32(target) != self.checksum:
            raise OSError(f"{read} bytes are not the rows that were noted")

    def is_intact(self) -> bool:
        """Whether the bytes can be read and match the checksum."""
        with suppress(OSError):
            self.read_into(memoryview(bytearray(self.nbytes)))
            return True
        return False


def open_cached_rows(
    places: Mapping[int, SegmentPlace], tokens: Sequence[int], card: EncoderCard, embeddings: Embeddings
) -> dict[int, CachedRows]:
    """Open the rows of segments, by segment; segments without valid rows are left out.

    Rows are valid when their parent is in the index, its file is whole and has this encoder's width and
    dtype, and the bytes match the checksum. One round trip to the store.

    Args:
        places: where the segments' rows are said to be, by segment.
        tokens: rows of each segment of the item.
        card: the encoder's.
        embeddings: where the parents are.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    parents = list(dict.fromkeys(place.parent for place in places.values()))
    known = [key for key, entry in zip(parents, embeddings.lookup(parents), strict=True) if entry is not None]
    files = {key: opened for key in known if (opened := _open(embeddings, key, card)) is not None}
    cached: dict[int, CachedRows] = {}
    for index, place in places.items():
        if place.parent in files and place.rows == tokens[index]:
            rows = _rows(*files[place.parent], place)
            if rows is not None and rows.is_intact():
                cached[index] = rows
    used = {rows.file for rows in cached.values()}
    for _, file in files.values():
        if file not in used:
            file.close()
    return cached


def _open(embeddings: Embeddings, key: str, card: EncoderCard) -> tuple[EmbeddingFile, BinaryIO] | None:
    try:
        header, file = embeddings.open(key)
    except NotFound:
        return None
    if (header.shape[1], header.dtype) == (card.hidden, card.dtype):
        return header, file
    file.close()
    return None


def _rows(header: EmbeddingFile, file: BinaryIO, place: SegmentPlace) -> CachedRows | None:
    try:
        offset, nbytes = header.rows(place.start, place.start + place.rows)
    except ValueError:
        return None
    return CachedRows(file, offset, nbytes, place.checksum)
