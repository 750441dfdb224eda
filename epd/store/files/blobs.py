"""Blobs: files of media bytes in one folder, bounded in bytes. The same for every store.

s-{uuid}      bytes of a source, downloaded or being uploaded
r-{uuid}      decoded raw media
m-{sha256}    a finished upload
i-{sha256}    bytes that came inside a request, see ``epd.store.files.inline``
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from epd.contracts.errors import BlobMissing, BlobSpaceFull, MediaTooLarge
from epd.contracts.media import BlobRef
from epd.store.files.inline import INLINE, InlineFolder
from epd.store.files.ledger import FolderLedger, Writing
from epd.store.values import BlobKind, InlineHolder

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_UPLOAD = "m-"
#: What each kind may fill of the limit. Decoded media has a quarter that no download and no upload takes: the
#: stage that empties the folder must never wait for the one that fills it.
_SHARES = {BlobKind.SOURCE: 0.75, BlobKind.RAW: 1.0}
_DIGEST = re.compile(r"[0-9a-f]{64}")


class UploadRecords(Protocol):
    """Which uploads live, with their sizes."""

    def remember(self, media_id: str, nbytes: int) -> None:
        """Record an upload for ``media_ttl`` seconds."""
        ...

    def renew(self, media_id: str) -> int | None:
        """Its size in bytes, its life renewed, or None."""
        ...


class Blobs:
    """Files of media bytes and decoded raw media, in a folder that is made on first use.

    Uploads live ``media_ttl`` seconds, inline bytes while a job holds them, the others until they are freed
    or swept.
    """

    def __init__(self, root: Path, uploads: UploadRecords, *, limit: int, media_ttl: float) -> None:
        """``limit`` is bytes over all blobs, ``media_ttl`` the seconds that an unused upload lives."""
        self._root = root
        self._uploads = uploads
        self._limit = limit
        self._media_ttl = media_ttl
        self._ledger = FolderLedger(root, limit)
        self._inline = InlineFolder(root, self._ledger)
        self._writing: dict[str, Writing] = {}

    @contextmanager
    def create(self, kind: BlobKind, reserve: int = 0) -> Iterator[tuple[str, BinaryIO]]:
        """A new file to write, named ``(name, file)``; removed when the block raises.

        ``reserve`` bytes are held against all processes until the block ends.

        Raises:
            BlobSpaceFull: ``reserve`` bytes more are over the share of the kind, or the device is full.
        """
        kind = BlobKind(kind)
        name = f"{kind.value}-{uuid.uuid4().hex}"
        path = self._root / name
        with _full_device(path):
            writing = self._writing[name] = self._ledger.begin(name, reserve, _SHARES[kind])
        try:
            with _full_device(path), path.open("xb") as file:
                yield name, file
        finally:
            del self._writing[name]
            self._ledger.end(writing, _size(path) or 0)

    def grow(self, name: str, nbytes: int) -> None:
        """Hold room for so many bytes in all of a file that this process is writing.

        Raises:
            BlobSpaceFull: they do not fit now; what is held stays held.
            MediaTooLarge: they would not fit into an empty folder.
        """
        share = _SHARES[BlobKind(name[0])]
        if nbytes > share * self._limit:
            raise MediaTooLarge(f"{nbytes} bytes are more than the blob directory may hold")
        self._ledger.grow(self._writing[name], nbytes, share)

    def room(self, kind: BlobKind) -> int:
        """About how many bytes of a kind still fit, without waiting and without looking at the files."""
        return self._ledger.room(_SHARES[kind])

    def path(self, ref: BlobRef) -> Path:
        """The file of a blob; raises ``BlobMissing`` when it is gone or of another size."""
        path = self._root / ref.name
        size = _size(path)
        if size != ref.nbytes:
            raise BlobMissing(f"blob {ref.name} " + ("is gone" if size is None else f"has {size} bytes"))
        return path

    def free(self, ref: BlobRef) -> None:
        """Remove a source or raw blob; uploads, inline bytes and missing files are left alone."""
        self.free_all([ref])

    def free_all(self, refs: Sequence[BlobRef]) -> None:
        """The same for many, with one change of the book; one that cannot be removed holds no other up.

        Raises:
            OSError: that of the last one that could not be removed.
        """
        freed, trouble = 0, None
        for ref in refs:
            if ref.name.startswith((_UPLOAD, INLINE)):
                continue
            try:
                os.unlink(f"{self._root}/{ref.name}")
            except FileNotFoundError:
                continue
            except OSError as error:
                trouble = error
            else:
                freed += ref.nbytes
        if freed:
            self._ledger.subtract(freed)
        if trouble is not None:
            raise trouble

    def keep_media(self, name: str, digest: str) -> BlobRef:
        """Turn a finished source file into the upload of that digest; one that is there is kept.

        Raises:
            BlobMissing: the file is gone.
        """
        source, target = self._root / name, self._root / f"{_UPLOAD}{digest}"
        size = _size(source)
        if size is None:
            raise BlobMissing(f"blob {name} is gone")
        ref = BlobRef(name=target.name, nbytes=size)
        before = _size(target)
        if before == size:
            source.unlink(missing_ok=True)
        else:
            # Equal digests are equal bytes, so replacing a file of another size mends a damaged one.
            source.replace(target)
        self._ledger.subtract(before or 0)
        self._touch(target)
        self._uploads.remember(digest, size)
        return ref

    def media(self, media_id: str) -> BlobRef | None:
        """The upload of that id, its life renewed; else the inline bytes of that digest, or None."""
        if not _DIGEST.fullmatch(media_id):
            return None
        upload = self._upload(media_id)
        if upload is not None:
            return upload
        path = self._inline.path(media_id)
        size = _size(path)
        return None if size is None else BlobRef(name=path.name, nbytes=size)

    def _upload(self, media_id: str) -> BlobRef | None:
        size = self._uploads.renew(media_id)
        path = self._root / f"{_UPLOAD}{media_id}"
        if size is None or _size(path) != size or not self._touch(path):
            return None
        return BlobRef(name=path.name, nbytes=size)

    def keep_inline(self, media_id: str, job_id: str, data: bytes, until: float) -> None:
        """Have a job hold bytes that came with it; an upload of them needs no holder.

        ``until`` is the job's deadline in Unix seconds.

        Raises:
            BlobSpaceFull: they do not fit, or the folder's lock could not be had in time.
        """
        if self._upload(media_id) is not None or self._inline.join(media_id, job_id, until):
            return
        with self.create(BlobKind.SOURCE, reserve=len(data)) as (name, file):
            file.write(data)
        self._inline.put(name, media_id, job_id, until)

    def join_inline(self, media_id: str, job_id: str, until: float) -> bool:
        """Have a job hold inline bytes that are there for another; False where there are none.

        Raises:
            BlobSpaceFull: the folder's lock could not be had in time.
        """
        return self._inline.join(media_id, job_id, until)

    def inline_holders(self, most: int) -> list[InlineHolder]:
        """Who holds inline bytes; of more than ``most`` digests a random choice."""
        return self._inline.holders(most)

    def drop_inline(self, holders: Sequence[InlineHolder]) -> int:
        """End what these hold, and remove the bytes that nobody holds then; returns how many files went."""
        return self._inline.drop(holders)

    def sweep(self, older_than: float) -> int:
        """Remove files not touched for that many seconds, uploads at their own age if that is higher.

        What a dead writer left half written goes at any age, what is being written at none. Returns how many.
        """
        count = self._ledger.count()
        now, busy = time.time(), self._ledger.being_written()
        with suppress(FileNotFoundError):
            for file in os.scandir(self._root):
                age = max(older_than, self._media_ttl) if file.name.startswith(_UPLOAD) else older_than
                with suppress(FileNotFoundError):
                    if not file.is_file(follow_symlinks=False) or file.name in busy:
                        continue
                    if (status := file.stat()).st_mtime >= now - age:
                        continue
                    if file.name.startswith(INLINE):  # what is still held stays
                        count += self._inline.drop([InlineHolder(file.name.removeprefix(INLINE))])
                        continue
                    Path(file.path).unlink()
                    self._ledger.subtract(status.st_size)
                    count += 1
        return count

    def used_bytes(self) -> int:
        """Bytes of all blobs, with what is held for those being written."""
        return self._ledger.bytes_now()

    def _touch(self, path: Path) -> bool:
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


@contextmanager
def _full_device(path: Path) -> Iterator[None]:
    """Remove the file of a block that raises; a device without room becomes ``BlobSpaceFull``."""
    try:
        yield
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise BlobSpaceFull("the blob directory's device is full") from error
        raise
