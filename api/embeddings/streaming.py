"""Responses that are sent piece by piece, without a copy, and never wait forever for a stalled reader."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import BinaryIO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from epd.contracts.errors import NotFound

#: Bytes that are sent at once; even, so that no element is cut in two.
PIECE = 1 << 20
#: Seconds within which a reader has to take a piece.
STALL_SECONDS = 60.0

#: What is sent. The server passes it to the kernel as it is, so a view of a mapped file is not copied here.
Piece = bytes | memoryview


def pieces_of(rows: memoryview) -> Iterator[memoryview]:
    """A view in pieces, none of them copied."""
    for at in range(0, len(rows), PIECE):
        yield rows[at : at + PIECE]


class StreamedResponse(Response):
    """Sends pieces whose total length is known. It ends when the reader stalls or leaves."""

    def __init__(self, pieces: AsyncIterator[Piece], headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            async with asyncio.timeout(STALL_SECONDS):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


#: Pages are loaded in the thread that maps them, so that the event loop waits for none.
_FLAGS = mmap.MAP_SHARED | mmap.MAP_POPULATE


def map_rows(file: BinaryIO, offset: int, nbytes: int) -> memoryview:
    """Bytes [offset, offset + nbytes) of an open file, read-only; the mapping ends with its last view.

    Raises:
        NotFound: the file is shorter than that, or cannot be mapped.
    """
    first = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + nbytes - first
    try:
        if os.fstat(file.fileno()).st_size < offset + nbytes:
            raise NotFound("embedding file is damaged: it became shorter")
        area = mmap.mmap(file.fileno(), length, flags=_FLAGS, prot=mmap.PROT_READ, offset=first)
    except OSError as error:
        raise NotFound(f"embedding file: {error.strerror}") from error
    return memoryview(area)[offset - first :]
