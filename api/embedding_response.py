"""The headers and the body of an answer with an embedding: never whole in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from api.embedding_formats import MEDIA_TYPES, Form, Representation
from api.streamed import Piece, pieces_of
from epd.store.embedding_file import EmbeddingFile


def embedding_headers(key: str, file: EmbeddingFile, body: Representation, tag: str) -> dict[str, str]:
    """The headers of an answer with or without a body; content is named by its key, so it never changes.

    Parts are asked for by ``start`` and ``stop`` in tokens, which is what engines count in; a Range header in
    bytes is left alone, as RFC 9110 (14.2) allows, and Accept-Ranges says so.
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
    """What to send of one embedding, out of its mapped rows."""
    if body.prefix:
        yield body.prefix
    for piece in pieces_of(rows):
        yield body.convert(piece)
