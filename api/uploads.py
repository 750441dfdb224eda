"""``POST /v1/media``: a stream of bytes into the blob directory, hashed and capped; all of it or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import APIRouter, Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from api.errors import problems
from api.requests import UPLOAD_SECONDS, body_chunks, stated_length
from api.services import Served, Services
from epd.contracts.errors import EmptyMedia, InvalidRequest, MediaTooLarge
from epd.contracts.media import BlobRef
from epd.contracts.responses import MediaAnswer
from epd.settings import Settings
from epd.store.files.blobs import Blobs
from epd.store.values import BlobKind

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks


router = APIRouter(tags=["media"])

FORM_TYPE = "multipart/form-data"
#: Bytes that are buffered before a thread writes them.
_PIECE = 1 << 20
#: What a form adds to its one file: boundaries and part headers, in bytes.
_FORM_EXTRA = 64 << 10

_BINARY = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"file": _BINARY}, "required": ["file"]}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {"application/octet-stream": {"schema": _BINARY}, "multipart/form-data": {"schema": _FORM}},
}


@router.post(
    "/v1/media",
    status_code=201,
    responses=problems(400, 413, 422, 503),
    openapi_extra={"requestBody": _BODY},
)
async def post_media(request: Request, services: Served) -> MediaAnswer:
    """Upload a file in a stream, raw or as a form with one file; ``media_id`` is the sha256 of its bytes."""
    limit = upload_limit(services.settings)
    boundary = boundary_of(request.headers.get("content-type"))
    cap = limit if boundary is None else limit + _FORM_EXTRA
    expected = stated_length(request, cap)
    chunks = body_chunks(request, limit=cap, seconds=UPLOAD_SECONDS)
    if boundary is not None:
        chunks = file_chunks(chunks, boundary)
    media_id, blob = await store_upload(services, chunks, expected=expected)
    return MediaAnswer(media_id=media_id, nbytes=blob.nbytes)


def upload_limit(settings: Settings) -> int:
    """The most bytes of an upload: its type is not known yet, so the largest limit of all types."""
    return max(settings.max_image_bytes, settings.max_audio_bytes, settings.max_video_bytes)


async def store_upload(
    services: Services, chunks: AsyncIterator[bytes], *, expected: int | None
) -> tuple[str, BlobRef]:
    """Write a stream as an upload; its media id (sha256 hex) and its blob.

    Args:
        services: The application's services.
        chunks: The bytes.
        expected: Their number where it is known, to be reserved at once; else space is reserved as they come.

    Raises:
        MediaTooLarge: more bytes than any type may have.
        EmptyMedia: there are no bytes.
        BlobSpaceFull: there is no space for them.
    """
    writer = _Writer(services.store.blobs, upload_limit(services.settings))
    await services.call(writer.open, expected or 0)
    try:
        buffer = bytearray()
        async for chunk in chunks:
            buffer += chunk
            if len(buffer) >= _PIECE:
                await services.call(writer.write, bytes(buffer))
                buffer.clear()
        await services.call(writer.write, bytes(buffer))
        return await services.call(writer.finish)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await services.call(writer.abandon, error)
        raise


class _Writer:
    """One file that is being written, from threads."""

    def __init__(self, blobs: Blobs, limit: int) -> None:
        self._blobs = blobs
        self._limit = limit
        self._block = ExitStack()
        self._hash = hashlib.sha256()
        self._total = 0
        self._held = 0

    def open(self, reserve: int) -> None:
        self._held = reserve
        self._name, self._file = self._block.enter_context(self._blobs.create(BlobKind.SOURCE, reserve))

    def write(self, data: bytes) -> None:
        self._total += len(data)
        if self._total > self._limit:
            raise MediaTooLarge(f"the upload is over {self._limit} bytes")
        if self._total > self._held:
            self._held = min(max(2 * self._held, self._total), self._limit)
            self._blobs.grow(self._name, self._held)
        self._hash.update(data)
        self._file.write(data)

    def finish(self) -> tuple[str, BlobRef]:
        if not self._total:
            raise EmptyMedia("the upload has no bytes")
        self._block.close()
        digest = self._hash.hexdigest()
        return digest, self._blobs.keep_media(self._name, digest)

    def abandon(self, error: BaseException) -> None:
        """Remove the file, as if the block had raised."""
        with suppress(type(error)):
            self._block.__exit__(type(error), error, error.__traceback__)


def boundary_of(content_type: str | None) -> bytes | None:
    """The boundary of a form, None where the body is not a form; ``InvalidRequest`` if it is missing."""
    kind, options = parse_options_header(content_type)
    if kind.lower() != FORM_TYPE.encode():
        return None
    if not options.get(b"boundary"):
        raise InvalidRequest("Content-Type: multipart/form-data without a boundary")
    return options[b"boundary"]


async def file_chunks(chunks: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[bytes]:
    """The bytes of the one file of a form.

    Raises:
        InvalidRequest: the form is malformed, or holds anything else than one file.
    """
    form = _FileForm()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
            for piece in form.take():
                yield piece
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"multipart/form-data: {str(error)[:200]}") from None
    if not form.ended:
        raise InvalidRequest("multipart/form-data: no whole file in it")


class _FileForm:
    """The callbacks of the parser. It holds the pieces of one chunk only."""

    def __init__(self) -> None:
        self.ended = False
        self._parts = 0
        self._pieces: list[bytes] = []

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def take(self) -> list[bytes]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise InvalidRequest("multipart/form-data: more than one field; send one file")

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._pieces.append(data[start:end])

    def _end(self) -> None:
        self.ended = True
