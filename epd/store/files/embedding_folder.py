"""The folder of embedding files: ``<root>/<key>/encoder_cache.safetensors``, published write-once.

A file appears whole or not at all (temporary file in the same folder, fsync, link) and a good one that is
there already is kept: renaming over a file that somebody reads gave readers wrong tensors (DESIGN 4).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from epd.contracts.embedding import EmbeddingRef
from epd.contracts.errors import BlobSpaceFull, NotFound
from epd.store.files.embedding_file import FILE_NAME, EmbeddingFile, copy_all, open_embedding, write_embedding

logger = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = ".tmp-"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Inode, size in bytes, and time of change in nanoseconds.
FileStamp = tuple[int, int, int]

#: Another process may remove the empty folder between its making and the file's.
_ATTEMPTS = 3


class EmbeddingFolder:
    """Files of embeddings below one root, which is made on first use."""

    def __init__(self, root: Path, *, device: int | None = None) -> None:
        """Use this root; it should be in memory (``/dev/shm``) or on a disk that all processes share.

        With a ``device`` (``st_dev``) it is never made, and written to on that file system alone: below a
        mount that was lost lies another, which has no room set aside for embeddings.
        """
        self._root = root
        self._device = device

    def path(self, key: str) -> Path:
        """The file of an embedding; raises ``NotFound`` for what is no key, so no path leaves the root."""
        return Path(self._file(key))

    def _file(self, key: str) -> str:
        """The same as text: path objects are a good part of what a small file costs."""
        if not _KEY.fullmatch(key):
            raise NotFound("no embedding has such a key")
        return f"{self._root}/{key}/{FILE_NAME}"

    def check(self, ref: EmbeddingRef) -> EmbeddingFile:
        """The file of a reference, checked; raises ``NotFound`` when it is gone, damaged or another's."""
        file = open_embedding(self.path(ref.key))
        if (file.shape, file.dtype, file.header.get("key")) != (ref.shape, ref.dtype, ref.key):
            raise NotFound(f"embedding file holds {file.dtype} {list(file.shape)}, not what the index says")
        return file

    def stamp(self, key: str) -> FileStamp | None:
        """What changes with a file when it is replaced or written to; None when there is none."""
        try:
            found = os.stat(self._file(key))
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def publish(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write the file once.

        Raises:
            ValueError: reference and data disagree.
            BlobSpaceFull: no room is left on the device of the root.
        """

        def is_good() -> bool:
            return self._is_good(ref)

        if os.path.exists(self._file(ref.key)) and is_good():
            return
        self._place(ref.key, lambda fd: write_embedding(fd, ref, data, header), keep=is_good)

    def copy_in(self, key: str, source: BinaryIO, *, keep: bool, checksum: str | None = None) -> str:
        """Make a file from one of another folder; returns the checksum of what was copied.

        A file that is there already stays with ``keep``; else it is what an unfinished copy left, and is
        replaced: no index names it, so nobody reads it.

        Raises:
            NotFound: the source is not what the given checksum says; nothing was made.
            BlobSpaceFull: no room is left on the device of the root.
            OSError: any other trouble of either device.
        """
        found = ""

        def fill(fd: int) -> None:
            nonlocal found
            found = copy_all(source, fd)
            if checksum not in (None, found):
                raise NotFound("embedding file in L2 is not what was written")

        self._place(key, fill, keep=lambda: keep)
        return found

    def remove(self, key: str) -> bool:
        """Delete a file; True when it was there. A reader that has it open keeps it."""
        path = self.path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            _clear_away(path)
        # Not empty: somebody writes the same embedding anew.
        with suppress(OSError):
            path.parent.rmdir()
        return True

    def untouched(self, older_than: float) -> Iterator[str]:
        """Keys of files not written for that many seconds. Temporary files of that age are deleted."""
        limit = time.time() - older_than
        with suppress(FileNotFoundError), os.scandir(self._root) as folders:
            for folder in folders:
                if _KEY.fullmatch(folder.name) and _settle(Path(folder.path), limit):
                    yield folder.name

    def _is_good(self, ref: EmbeddingRef) -> bool:
        try:
            self.check(ref)
        except NotFound:
            return False
        return True

    def _place(self, key: str, fill: Callable[[int], object], *, keep: Callable[[], bool]) -> None:
        """Write a file under its name; one that came there meanwhile stays where ``keep`` says so."""
        path = self._file(key)
        self._require_device()
        for attempt in range(_ATTEMPTS):
            try:
                self._write(path, fill, keep)
                return
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise BlobSpaceFull("no room left for embeddings") from error
                raise

    def _write(self, path: str, fill: Callable[[int], object], keep: Callable[[], bool]) -> None:
        folder = os.path.dirname(path)
        self._make(folder)
        temporary = f"{folder}/{_TEMPORARY}{os.urandom(16).hex()}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                fill(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            _link(temporary, path, keep)
        except BaseException:
            # Nothing of it stays on a full device, unless another file lies in the folder.
            with suppress(OSError):
                os.unlink(temporary)
            with suppress(OSError):
                os.rmdir(folder)
            raise
        with suppress(FileNotFoundError):
            os.unlink(temporary)

    def _make(self, folder: str) -> None:
        """The folder of one embedding, and the root where this is the first."""
        try:
            os.mkdir(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            if self._device is not None:
                raise
            os.makedirs(folder, exist_ok=True)

    def _require_device(self) -> None:
        """Raises ``OSError`` where the root is not on its file system any more."""
        if self._device is not None and os.stat(self._root).st_dev != self._device:
            raise OSError(errno.ENODEV, "it is on another file system than at start", str(self._root))


def _link(temporary: str, path: str, keep: Callable[[], bool]) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        if not keep():
            logger.warning("%s: a damaged or unfinished file is replaced", path)
            _clear_away(Path(path))
            os.replace(temporary, path)


def _clear_away(path: Path) -> None:
    """Delete a folder that stands where a file of ours belongs: nothing else could ever come there again."""
    if path.is_dir():
        logger.warning("%s is a folder and is deleted", path)
        shutil.rmtree(path)


def _settle(folder: Path, limit: float) -> bool:
    """Delete old temporary files of one embedding's folder; True when its file is old too."""
    old = False
    with suppress(OSError):
        for file in os.scandir(folder):
            if file.stat().st_mtime >= limit:
                continue
            if file.name == FILE_NAME:
                old = True
            elif file.name.startswith(_TEMPORARY):
                Path(file.path).unlink(missing_ok=True)
        if folder.stat().st_mtime < limit:
            folder.rmdir()
    return old
