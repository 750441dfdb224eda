"""Several embeddings' rows for one request: all of them or an error, mapped one after the other.

They are pinned with the look-up and as long as they are sent, so that a check that was good stays good. A
file is mapped when its turn comes: a request holds one open file, however many it names.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.embedding_formats import row_bounds
from api.errors import invalid_fields
from api.mapped_rows import map_rows
from api.services import Services
from api.slice_formats import Rows, SliceForm
from api.streamed import Piece, pieces_of
from epd.contracts.errors import InvalidRequest, MediaTooLarge, NotFound, RowsNotThere
from epd.contracts.handoff import Slice
from epd.contracts.metadata import EmbeddingRef
from epd.store.cache import Embeddings

#: Slices of one request, and bytes of all its rows.
MAX_SLICES = 256
MAX_BYTES = 4 << 30
#: Bytes of a request body: a slice takes some 110.
MAX_BODY = 64 << 10
#: A pin's length in seconds. It is renewed at half of that, and ends by itself where this process dies.
PIN_SECONDS = 20.0
_MAX_NAMED = 8


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
        raise invalid_fields(
            error.errors(include_url=False, include_context=False, include_input=False)
        ) from None


def pinned_rows(embeddings: Embeddings, slices: Sequence[Slice]) -> list[Rows]:
    """The rows of all slices, pinned and checked. One round trip.

    Raises:
        NotFound: embeddings are not there; they are named.
        InvalidRequest, RowsNotThere: a slice is not of rows that its embedding has; its number is named.
        MediaTooLarge: all rows together are over the limit.
    """
    keys = list(dict.fromkeys(part.key for part in slices))
    entries = dict(zip(keys, embeddings.lookup(keys, lease=PIN_SECONDS), strict=True))
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


async def slice_pieces(services: Services, prefix: bytes, parts: Sequence[Rows]) -> AsyncIterator[Piece]:
    """What to send of all slices. A file that is gone all the same breaks the answer off."""
    pinned_at = time.monotonic()
    if prefix:
        yield prefix
    for number, part in enumerate(parts):
        rows = await services.call(_map, services.store.embeddings, part)
        for piece in pieces_of(rows):
            yield piece
            if time.monotonic() - pinned_at > PIN_SECONDS / 2:
                pinned_at = time.monotonic()
                await _renew(services, parts[number:])


def _map(embeddings: Embeddings, part: Rows) -> memoryview:
    stored, file = embeddings.open(part.ref.key)
    with file:
        if (stored.shape, stored.dtype) != (part.ref.shape, part.ref.dtype):
            raise NotFound("embedding file holds something else than the index said")
        return map_rows(file, *stored.rows(part.start, part.stop))


async def _renew(services: Services, parts: Sequence[Rows]) -> None:
    keys = list(dict.fromkeys(part.ref.key for part in parts))
    await services.call(services.store.embeddings.pin, keys, PIN_SECONDS)
