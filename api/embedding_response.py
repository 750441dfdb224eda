"""Streaming part of an embedding file: never whole in memory, and never waiting on a dead reader for ever."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import closing
from typing import BinaryIO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.embedding_formats import MEDIA_TYPES, Form, Representation
from api.services import Services
from epd.store.embedding_file import EmbeddingFile

logger = logging.getLogger(__name__)

#: Bytes that are read and sent at once; even, so that no element is cut in two.
PIECE = 1 << 20
#: A reader that takes no piece for this long is given up, in seconds.
STALL_SECONDS = 60.0


def embedding_headers(key: str, file: EmbeddingFile, body: Representation, tag: str) -> dict[str, str]:
    """The headers of an answer with or without a body; content is named by its key, so it never changes."""
    return {
        "Content-Type": MEDIA_TYPES[body.form],
        "Content-Disposition": f'attachment; filename="{key}.{body.form}"',
        "Content-Length": str(body.length),
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


class EmbeddingResponse(Response):
    """Sends a representation out of an open file, and closes the file."""

    def __init__(
        self, services: Services, file: BinaryIO, body: Representation, headers: dict[str, str]
    ) -> None:
        super().__init__(headers=headers)
        self._services = services
        self._file = file
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; a reader that stalls or leaves ends it."""
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        with closing(self._file):
            await send(start)
            async for piece in self._pieces():
                message = {"type": "http.response.body", "body": piece, "more_body": True}
                await asyncio.wait_for(send(message), STALL_SECONDS)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._body.prefix:
            yield self._body.prefix
        at, end = self._body.offset, self._body.offset + self._body.nbytes
        while at < end:
            piece = await self._services.call(os.pread, self._file.fileno(), min(PIECE, end - at), at)
            if not piece:
                raise OSError("the embedding file became shorter while it was read")
            at += len(piece)
            yield self._body.convert(piece)
