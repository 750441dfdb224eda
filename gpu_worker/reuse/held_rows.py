"""Rows of a segment inside another embedding's file, which is held open: eviction cannot take them away."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from epd.contracts.card import EncoderCard
from epd.contracts.errors import NotFound
from epd.store.embedding_file import EmbeddingFile
from epd.store.embeddings import Embeddings
from epd.store.redis.segments import SegmentPlace


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

    def is_sound(self) -> bool:
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
            if rows is not None and rows.is_sound():
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
