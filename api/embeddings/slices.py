"""Rows of several embeddings for one request: all of them or an error, mapped one after the other.

The look-up pins them, and they stay pinned while they are sent, so that what was checked stays true; and no
longer, so that there is room for new embeddings. A file is mapped when its turn comes: a request holds one
open file, however many it names.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.embeddings.formats import row_bounds
from api.embeddings.streaming import Piece, map_rows, pieces_of
from api.errors import invalid_request
from api.services import Services
from epd.contracts.embedding import EmbeddingRef, Entry
from epd.contracts.errors import InvalidRequest, MediaTooLarge, NotFound, RowsNotThere, StoreUnavailable
from epd.contracts.handoff import Slice
from epd.store.cache.embeddings import Embeddings
from epd.store.files.embedding_format import DTYPE_CODES, ITEM_BYTES

#: Slices of one request, and bytes of all its rows.
MAX_SLICES = 256
MAX_BYTES = 4 << 30
#: Bytes of a request body: a slice takes some 110.
MAX_BODY = 64 << 10
#: Seconds that a pin lasts. It is renewed at half of that, removed when all is sent, and expires if this
#: process dies.
PIN_SECONDS = 20.0
_MAX_NAMED = 8
_ALIGNMENT = 8


class SliceForm(StrEnum):
    """A form of several slices."""

    SAFETENSORS = "safetensors"
    RAW = "raw"


class SlicesRequest(BaseModel):
    """Rows of several embeddings, in the order in which they are wanted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slices: list[Slice] = Field(min_length=1, max_length=MAX_SLICES)
    format: SliceForm = SliceForm.SAFETENSORS


def parse_slices(body: bytes | bytearray) -> SlicesRequest:
    """Read a request body; raises ``InvalidRequest`` naming the fields at fault."""
    try:
        return SlicesRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise invalid_request(error) from None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [start, stop) of one embedding, checked against its reference."""

    ref: EmbeddingRef
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, int]:
        """[rows, hidden]."""
        return self.stop - self.start, self.ref.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.shape[0] * self.shape[1] * ITEM_BYTES[self.ref.dtype]


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """Rows in the order in which they are sent, and the holder of their pins."""

    parts: list[Rows]
    holder: str


def slices_prefix(parts: Sequence[Rows], form: SliceForm) -> bytes:
    """What goes before the rows of all slices.

    Raises:
        InvalidRequest: ``raw`` of slices that differ in dtype or width.
    """
    if form is SliceForm.RAW:
        if len({(part.ref.dtype, part.ref.shape[1]) for part in parts}) > 1:
            raise InvalidRequest("format: raw needs slices of one dtype and one width; take safetensors")
        return b""
    header: dict[str, object] = {
        "__metadata__": {
            str(number): f"{part.ref.key} {part.start}:{part.stop}" for number, part in enumerate(parts)
        }
    }
    at = 0
    for number, part in enumerate(parts):
        header[str(number)] = {
            "dtype": DTYPE_CODES[part.ref.dtype],
            "shape": part.shape,
            "data_offsets": (at, at + part.nbytes),
        }
        at += part.nbytes
    text = orjson.dumps(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def slices_headers(parts: Sequence[Rows], form: SliceForm, nbytes: int) -> dict[str, str]:
    """The headers of the answer; ``nbytes`` is the whole body's size."""
    kinds = {SliceForm.SAFETENSORS: "application/vnd.safetensors", SliceForm.RAW: "application/octet-stream"}
    headers = {
        "Content-Type": kinds[form],
        "Content-Length": str(nbytes),
        "X-Epd-Rows": ",".join(str(part.shape[0]) for part in parts),
    }
    if form is SliceForm.RAW:
        headers |= {"X-Epd-Dtype": parts[0].ref.dtype, "X-Epd-Hidden": str(parts[0].shape[1])}
    return headers


def pinned_rows(embeddings: Embeddings, slices: Sequence[Slice]) -> PinnedRows:
    """The rows of all slices, pinned and checked. One round trip; nothing stays pinned when one is refused.

    Raises:
        NotFound: embeddings are not there; they are named.
        InvalidRequest, RowsNotThere: a slice is not of rows that its embedding has; its number is named.
        MediaTooLarge: all rows together are over the limit.
    """
    keys, holder = list(dict.fromkeys(part.key for part in slices)), uuid.uuid4().hex
    entries = dict(zip(keys, embeddings.lookup(keys, lease=PIN_SECONDS, holder=holder), strict=True))
    try:
        return PinnedRows(_checked_rows(entries, slices), holder)
    except BaseException:
        _unpin(embeddings, keys, holder)
        raise


def _checked_rows(entries: Mapping[str, Entry | None], slices: Sequence[Slice]) -> list[Rows]:
    missing = [key for key, entry in entries.items() if entry is None]
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        raise NotFound(f"no such embedding, or it was evicted: {', '.join(missing[:_MAX_NAMED])}{more}")
    refs = {key: entry.ref for key, entry in entries.items() if entry is not None}
    parts = [_rows(number, part, refs[part.key]) for number, part in enumerate(slices)]
    if sum(part.nbytes for part in parts) > MAX_BYTES:
        raise MediaTooLarge(f"slices: over {MAX_BYTES} bytes together")
    return parts


def _rows(number: int, part: Slice, ref: EmbeddingRef) -> Rows:
    try:
        return Rows(ref, *row_bounds(part.start, part.stop, ref.tokens))
    except (InvalidRequest, RowsNotThere) as error:
        raise type(error)(f"slices[{number}]: {error.message}") from None


async def slice_pieces(services: Services, prefix: bytes, pinned: PinnedRows) -> AsyncIterator[Piece]:
    """What to send of all slices. Their pins are removed at the end.

    Raises:
        NotFound: a file is missing or damaged in spite of its pin, which aborts the response.
    """
    try:
        async for piece in _pieces(services, prefix, pinned):
            yield piece
    finally:
        await services.call(_unpin, services.store.embeddings, _keys(pinned.parts), pinned.holder)


async def _pieces(services: Services, prefix: bytes, pinned: PinnedRows) -> AsyncIterator[Piece]:
    parts, pinned_at = pinned.parts, time.monotonic()
    if prefix:
        yield prefix
    for number, part in enumerate(parts):
        rows = await services.call(_map, services.store.embeddings, part)
        for piece in pieces_of(rows):
            yield piece
            if time.monotonic() - pinned_at > PIN_SECONDS / 2:
                pinned_at = time.monotonic()
                await _renew(services, parts[number:], pinned.holder)


def _map(embeddings: Embeddings, part: Rows) -> memoryview:
    stored, file = embeddings.open(part.ref.key)
    with file:
        if (stored.shape, stored.dtype) != (part.ref.shape, part.ref.dtype):
            raise NotFound("embedding file holds something else than the index says")
        return map_rows(file, *stored.rows(part.start, part.stop))


async def _renew(services: Services, parts: Sequence[Rows], holder: str) -> None:
    await services.call(services.store.embeddings.pin, _keys(parts), PIN_SECONDS, holder)


def _unpin(embeddings: Embeddings, keys: Sequence[str], holder: str) -> None:
    """Remove pins. One that cannot be removed because the store is unavailable expires."""
    with suppress(StoreUnavailable):
        embeddings.unpin(keys, holder)


def _keys(parts: Sequence[Rows]) -> list[str]:
    return list(dict.fromkeys(part.ref.key for part in parts))
