"""Rows of several embeddings as one body.

``safetensors``: a file with a tensor [rows, hidden] for each slice, named "0", "1", ... in the order asked
for, each in its stored dtype; its header metadata tells "key start:stop" by the same names. ``raw``: the rows
alone, one slice behind the other, for who receives straight into a buffer; all of one dtype and width then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import orjson

from epd.contracts.errors import InvalidRequest
from epd.contracts.metadata import EmbeddingRef
from epd.store.embedding_file import DTYPE_CODES, ITEM_BYTES

_ALIGNMENT = 8


class SliceForm(StrEnum):
    """A form of several slices."""

    SAFETENSORS = "safetensors"
    RAW = "raw"


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
