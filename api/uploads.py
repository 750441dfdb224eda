"""Uploads: a stream of bytes into the blob directory, hashed and capped on the way; whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

import anyio

from api.services import Services
from epd.contracts.errors import EmptyMedia, MediaTooLarge
from epd.contracts.media import BlobRef
from epd.settings import Settings
from epd.store.blob_folder import Blobs
from epd.store.values import BlobKind

#: Bytes that are gathered before a thread writes them.
_PIECE = 1 << 20


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
        expected: Their number where it is known, to be held at once; else room is held as they come.

    Raises:
        MediaTooLarge: more bytes than any type may have.
        EmptyMedia: no byte.
        BlobSpaceFull: no room.
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
    """One file being written, from threads."""

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
        """Have the file removed, as if the block had raised."""
        with suppress(type(error)):
            self._block.__exit__(type(error), error, error.__traceback__)
