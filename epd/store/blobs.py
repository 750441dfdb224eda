"""The protocol of the blob directory: files of media bytes on their way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from epd.contracts.media import BlobRef
from epd.store.values import BlobKind, InlineHolder


class Blobs(Protocol):
    """Files of media bytes and decoded raw media.

    Names start with ``m-`` (upload), ``i-`` (came inside a request), ``s-`` (downloaded source)
    or ``r-`` (raw).
    Uploads live ``media_ttl`` seconds, inline bytes while a job holds them, the others until they are freed
    or swept.
    """

    def create(self, kind: BlobKind, reserve: int = 0) -> AbstractContextManager[tuple[str, BinaryIO]]:
        """A new file to write: (name, file). Raises ``BlobSpaceFull``; removed when the block raises.

        ``reserve`` bytes are held against all processes until the block ends.
        """
        ...

    def grow(self, name: str, nbytes: int) -> None:
        """Hold so many bytes in all for a file inside its ``create``.

        Raises ``BlobSpaceFull``, or ``MediaTooLarge`` when they would not fit into an empty folder.
        """
        ...

    def room(self, kind: BlobKind) -> int:
        """About how many bytes of a kind fit just now. Never waits."""
        ...

    def path(self, ref: BlobRef) -> Path:
        """The file of a blob; raises ``BlobMissing`` when it is gone or of another size."""
        ...

    def free(self, ref: BlobRef) -> None:
        """Remove a source or raw blob. Uploads, inline bytes and missing files are left alone."""
        ...

    def free_all(self, refs: Sequence[BlobRef]) -> None:
        """The same for many; raises ``OSError`` where one could not be removed, after the others were."""
        ...

    def keep_media(self, name: str, digest: str) -> BlobRef:
        """Turn a finished file into the upload of that digest (link; kept if there already)."""
        ...

    def media(self, media_id: str) -> BlobRef | None:
        """The upload of that id, its life renewed; else the inline bytes of that digest, or None."""
        ...

    def keep_inline(self, media_id: str, job_id: str, data: bytes, until: float) -> None:
        """Have a job hold bytes that came with it; an upload of them needs no holder.

        ``until`` is the job's deadline in Unix seconds. Raises ``BlobSpaceFull``.
        """
        ...

    def join_inline(self, media_id: str, job_id: str, until: float) -> bool:
        """Have a job hold inline bytes that are there for another; False where there are none."""
        ...

    def inline_holders(self, most: int) -> list[InlineHolder]:
        """Who holds inline bytes; of more than ``most`` digests a random choice."""
        ...

    def drop_inline(self, holders: Sequence[InlineHolder]) -> int:
        """End what these hold, and remove the bytes that nobody holds then; returns how many files went."""
        ...

    def sweep(self, older_than: float) -> int:
        """Remove files not touched for that many seconds, and what dead writers left; returns how many."""
        ...

    def used_bytes(self) -> int:
        """Bytes of all blobs."""
        ...
