"""Blobs: files of media bytes in one folder, whose total size is bounded.

s-{uuid}      bytes of a source, downloaded or being uploaded
r-{uuid}      decoded raw media
m-{sha256}    a finished upload; the digest is its media id
i-{sha256}    bytes that came inside a request, see ``epd.store.files.inline``
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from epd.contracts.errors import BlobMissing, BlobSpaceFull, MediaTooLarge
from epd.contracts.media import BlobRef
from epd.store.files.count import size_of
from epd.store.files.inline import INLINE, InlineFolder
from epd.store.files.ledger import FolderLedger, Reservation
from epd.store.values import BlobKind, InlineHolder

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_UPLOAD = "m-"
#: The share of the limit that each kind may fill. A quarter is left to decoded media alone, because the stage
#: that empties the folder must never wait for the one that fills it.
_SHARES = {BlobKind.SOURCE: 0.75, BlobKind.RAW: 1.0}
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """Media bytes and decoded media, in a folder that is created with the first file. Safe across processes.

    An upload lives ``media_ttl`` seconds after its last use, inline bytes live while a job holds them, and
    the others until they are freed or swept.
    """

    def __init__(self, root: Path, uploads: UploadRecords, *, limit: int, media_ttl: float) -> None:
        """Use a folder with at most ``limit`` bytes of blobs. ``media_ttl`` is seconds."""
        self._root = root
        self._uploads = uploads
        self._limit = limit
        self._media_ttl = media_ttl
        self._ledger = FolderLedger(root, limit)
        self._inline = InlineFolder(root, self._ledger)
        self._reservations: dict[str, Reservation] = {}

    @contextmanager
    def create(self, kind: BlobKind, reserve: int = 0) -> Iterator[tuple[str, BinaryIO]]:
        """Open a new file for writing, as ``(name, file)``. It is deleted if the block raises.

        While the block runs, the file lies in another folder, at ``file.name``.

        Args:
            kind: What will be written.
            reserve: Bytes of room that nothing else can take until the block ends. ``grow`` adds more.

        Raises:
            BlobSpaceFull: there is no room for ``reserve`` bytes, or the device is full.
        """
        with _space():
            reservation = self._ledger.reserve(kind.value, reserve, _SHARES[kind])
        self._reservations[reservation.name] = reservation
        try:
            with _space(), self._open(reservation.path) as file:
                yield reservation.name, file
            self._ledger.finish(reservation)
        except BaseException:
            self._ledger.drop(reservation)
            raise
        finally:
            del self._reservations[reservation.name]

    def _open(self, path: str) -> BinaryIO:
        try:
            return open(path, "xb")
        except FileNotFoundError:  # Somebody removed the folder.
            self._ledger.restore()
            return open(path, "xb")

    def grow(self, name: str, nbytes: int) -> None:
        """Reserve so many bytes in total for a file that this process is writing.

        Raises:
            BlobSpaceFull: they do not fit now. The reservation stays as it is.
            MediaTooLarge: they would not even fit into an empty folder.
        """
        share = _SHARES[BlobKind(name[0])]
        if nbytes > share * self._limit:
            raise MediaTooLarge(f"{nbytes} bytes are more than the blob directory may hold")
        self._ledger.grow(self._reservations[name], nbytes, share)

    def room(self, kind: BlobKind) -> int:
        """About how many bytes of a kind still fit, without a lock and without counting the files."""
        return self._ledger.room(_SHARES[kind])

    def path(self, ref: BlobRef) -> Path:
        """The file of a blob; raises ``BlobMissing`` if it is gone or has another size."""
        path = self._root / ref.name
        size = size_of(path)
        if size != ref.nbytes:
            raise BlobMissing(f"blob {ref.name} " + ("is gone" if size is None else f"has {size} bytes"))
        return path

    def free(self, ref: BlobRef) -> None:
        """Delete a source or raw blob. Uploads, inline bytes and missing files are ignored."""
        self.free_all([ref])

    def free_all(self, refs: Sequence[BlobRef]) -> None:
        """Delete many blobs, with one change of the ledger. One that cannot be deleted stops no other.

        Raises:
            OSError: a blob could not be deleted; the error of the last such blob.
        """
        kept = (_UPLOAD, INLINE)
        self._ledger.delete(f"{self._root}/{ref.name}" for ref in refs if not ref.name.startswith(kept))

    def keep_media(self, name: str, digest: str) -> BlobRef:
        """Turn a finished source file into the upload of its digest. An upload that exists is kept.

        Raises:
            BlobMissing: the file is gone.
        """
        source, target = self._root / name, self._root / f"{_UPLOAD}{digest}"
        size = size_of(source)
        if size is None:
            raise BlobMissing(f"blob {name} is gone")
        ref = BlobRef(name=target.name, nbytes=size)
        if size_of(target) == size:
            self._ledger.delete([source])
        else:
            # Equal digests are equal bytes, so an upload of another size is damaged.
            self._ledger.replace(source, target)
        _touch(target)
        self._uploads.remember(digest, size)
        return ref

    def media(self, media_id: str) -> BlobRef | None:
        """The upload of a media id, whose life is renewed, or else the inline bytes of that digest."""
        if not _DIGEST.fullmatch(media_id):
            return None
        upload = self._upload(media_id)
        if upload is not None:
            return upload
        path = self._inline.path(media_id)
        size = size_of(path)
        return None if size is None else BlobRef(name=path.name, nbytes=size)

    def _upload(self, media_id: str) -> BlobRef | None:
        size = self._uploads.renew(media_id)
        path = self._root / f"{_UPLOAD}{media_id}"
        if size is None or size_of(path) != size or not _touch(path):
            return None
        return BlobRef(name=path.name, nbytes=size)

    def keep_inline(self, media_id: str, job_id: str, data: bytes, until: float) -> None:
        """Store bytes that came with a job, for as long as it holds them. If they were uploaded, do nothing.

        ``until`` is the job's deadline in Unix seconds.

        Raises:
            BlobSpaceFull: they do not fit, or the ledger's lock was not free in time.
        """
        if self._upload(media_id) is not None or self._inline.join(media_id, job_id, until):
            return
        with self.create(BlobKind.SOURCE, reserve=len(data)) as (name, file):
            file.write(data)
        self._inline.put(name, media_id, job_id, until)

    def join_inline(self, media_id: str, job_id: str, until: float) -> bool:
        """Let a job hold inline bytes that another job brought. False if there are none.

        Raises:
            BlobSpaceFull: the ledger's lock was not free in time.
        """
        return self._inline.join(media_id, job_id, until)

    def inline_holders(self, most: int) -> list[InlineHolder]:
        """The holders of inline bytes; of more than ``most`` digests a random choice."""
        return self._inline.holders(most)

    def drop_inline(self, holders: Sequence[InlineHolder]) -> int:
        """Remove holders, and delete the bytes that have none left. Returns how many files were deleted."""
        return self._inline.drop(holders)

    def sweep(self, older_than: float) -> int:
        """Delete files that have not been touched for that many seconds, and what dead writers left.

        An upload is kept for at least ``media_ttl``. A file that is being written is never deleted, and nor
        are inline bytes that a job holds.

        Returns:
            How many files were deleted.
        """
        count = self._ledger.count()
        now = time.time()
        with suppress(FileNotFoundError):
            for file in os.scandir(self._root):
                count += self._sweep_file(file, now, older_than)
        return count

    def _sweep_file(self, file: os.DirEntry[str], now: float, older_than: float) -> int:
        """Delete a file if it is old. Returns 1 if it was deleted, else 0."""
        age = max(older_than, self._media_ttl) if file.name.startswith(_UPLOAD) else older_than
        with suppress(FileNotFoundError):
            if not file.is_file(follow_symlinks=False):
                return 0
            status = file.stat()
            if status.st_mtime >= now - age:
                return 0
            if file.name.startswith(INLINE):
                return self._inline.drop([InlineHolder(file.name.removeprefix(INLINE))])
            return self._ledger.delete([Path(file.path)])
        return 0

    def used_bytes(self) -> int:
        """Bytes of all blobs, with the reservations of those that are being written."""
        return self._ledger.bytes_now()


class UploadRecords(Protocol):
    """The sizes of live uploads. They are kept on the server, which nothing in this package knows."""

    def remember(self, media_id: str, nbytes: int) -> None:
        """Record an upload for ``media_ttl`` seconds."""
        ...

    def renew(self, media_id: str) -> int | None:
        """Return the size of an upload in bytes, or None, and renew its life."""
        ...


def _touch(path: Path) -> bool:
    """Renew the modification time of a file. False if there is none."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _space() -> Iterator[None]:
    """Turn the error of a full device into ``BlobSpaceFull``."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise BlobSpaceFull("the blob directory's device is full") from error
        raise
