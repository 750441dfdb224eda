"""The formats of an embedding, and which bytes of its file each format takes.

``safetensors`` is the stored form; ``npy`` is numpy's (format version 1.0, C order); ``raw`` is the rows
alone, little-endian. numpy has no bfloat16, so ``npy`` widens it to float32, which is exact: the 16 bits
become the upper half of the float32.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.lib import format as npy

from api.embeddings.streaming import Piece, pieces_of
from epd.contracts.errors import InvalidRequest, RowsNotThere
from epd.store.files.embedding_format import EmbeddingFile, encode_header

_NPY_TYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<f4"}


class Form(StrEnum):
    """A form of an embedding."""

    SAFETENSORS = "safetensors"
    NPY = "npy"
    RAW = "raw"


MEDIA_TYPES = {
    Form.SAFETENSORS: "application/vnd.safetensors",
    Form.NPY: "application/x-npy",
    Form.RAW: "application/octet-stream",
}


@dataclass(frozen=True, slots=True)
class Representation:
    """What to send: ``prefix``, then ``nbytes`` of the file from ``offset``, widened where ``widen``.

    ``shape`` is [rows, hidden]; ``dtype`` is the one that is sent.
    """

    form: Form
    prefix: bytes
    offset: int
    nbytes: int
    shape: tuple[int, int]
    dtype: str
    widen: bool = False

    @property
    def length(self) -> int:
        """Bytes of the whole body."""
        return len(self.prefix) + self.nbytes * (2 if self.widen else 1)

    def convert(self, piece: memoryview) -> bytes | memoryview:
        """A piece of the file as it is sent; its length is even. Only what is widened is copied."""
        return widened(piece) if self.widen else piece


def represent(file: EmbeddingFile, form: Form, start: int | None, stop: int | None) -> Representation:
    """Rows [start, stop) of a file in a form; absent bounds are the file's.

    Raises:
        InvalidRequest, RowsNotThere: as ``row_bounds``.
    """
    first, last = row_bounds(start, stop, file.shape[0])
    offset, nbytes = file.rows(first, last)
    widen = form is Form.NPY and file.dtype == "bfloat16"
    shape = (last - first, file.shape[1])
    return Representation(
        form=form,
        prefix=_prefix(file, form, shape, nbytes),
        offset=offset,
        nbytes=nbytes,
        shape=shape,
        dtype="float32" if widen else file.dtype,
        widen=widen,
    )


def row_bounds(start: int | None, stop: int | None, tokens: int) -> tuple[int, int]:
    """The requested rows [first, last) of an embedding of ``tokens`` rows.

    Raises:
        InvalidRequest: there is no row between the bounds.
        RowsNotThere: a bound is past the end of the embedding.
    """
    first, last = 0 if start is None else start, tokens if stop is None else stop
    if stop is not None and first >= stop:
        raise InvalidRequest(f"start, stop: there is no row in {first}:{last}")
    if first >= tokens:
        raise RowsNotThere(f"start: {first} is no row of {tokens} tokens")
    if last > tokens:
        raise RowsNotThere(f"stop: {last} is past the end of {tokens} tokens")
    return first, last


def widened(piece: bytes | memoryview) -> bytes:
    """bfloat16 little-endian bytes as float32 little-endian bytes."""
    return (np.frombuffer(piece, dtype="<u2").astype("<u4") << 16).astype("<u4").tobytes()


def form_of(accept: str | None) -> Form:
    """The form that an Accept header prefers; safetensors where it names none of these."""
    ours = {media_type: form for form, media_type in MEDIA_TYPES.items()}
    best, best_quality = Form.SAFETENSORS, 0.0
    for entry in (accept or "").lower().split(","):
        media_type, *parameters = (part.strip() for part in entry.split(";"))
        quality = _quality(parameters)
        if media_type in ours and quality > best_quality:
            best, best_quality = ours[media_type], quality
    return best


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _prefix(file: EmbeddingFile, form: Form, shape: tuple[int, int], nbytes: int) -> bytes:
    if form is Form.RAW:
        return b""
    if form is Form.SAFETENSORS:
        return encode_header(shape, file.dtype, nbytes, file.header | {"tokens": str(shape[0])})
    buffer = io.BytesIO()
    fields = {"descr": _NPY_TYPES[file.dtype], "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def embedding_headers(key: str, file: EmbeddingFile, body: Representation, tag: str) -> dict[str, str]:
    """The headers of a response with or without a body. The key names the content, so it never changes.

    Parts are requested by ``start`` and ``stop`` in tokens, the unit of engines. A Range header in bytes is
    ignored, as RFC 9110 (14.2) allows, and Accept-Ranges says so.
    """
    return {
        "Content-Type": MEDIA_TYPES[body.form],
        "Content-Disposition": f'attachment; filename="{key}.{body.form}"',
        "Content-Length": str(body.length),
        "Accept-Ranges": "none",
        "ETag": tag,
        "Vary": "Accept",
        "Cache-Control": "private, max-age=31536000, immutable",
        "X-Epd-Shape": f"{body.shape[0]},{body.shape[1]}",
        "X-Epd-Dtype": body.dtype,
        "X-Epd-Stored-Dtype": file.dtype,
        "X-Epd-Tokens": str(file.shape[0]),
    }


def entity_tag(key: str, body: Representation, tokens: int) -> str:
    """The key itself for the whole safetensors file; other bytes of one key need other tags."""
    if body.form is Form.SAFETENSORS and body.shape[0] == tokens:
        return f'"{key}"'
    return f'"{key}.{body.offset}.{body.nbytes}.{body.form}"'


async def embedding_pieces(body: Representation, rows: memoryview) -> AsyncIterator[Piece]:
    """What to send of one embedding, from its mapped rows."""
    if body.prefix:
        yield body.prefix
    for piece in pieces_of(rows):
        yield body.convert(piece)
