"""The folder of embedding files: ``<root>/<key>/encoder_cache.safetensors``, each published once.

A file appears whole or not at all (temporary file in the same folder, fsync, link), and a good file that
exists is kept: renaming over a file while it is read gave readers wrong tensors.
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
from epd.store.files.embedding_format import (
    FILE_NAME,
    EmbeddingFile,
    copy_all,
    open_embedding,
    write_embedding,
)

logger = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = ".tmp-"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Inode, size in bytes, and modification time in nanoseconds.
FileStamp = tuple[int, int, int]

#: Tries to write a file: another process may remove its folder while that is still empty.
_ATTEMPTS = 3


class EmbeddingFolder:
    """Embedding files below one root folder, which is created with the first file."""

    def __init__(self, root: Path, *, device: int | None = None) -> None:
        """Use a root folder.

        Args:
            root: A folder in memory (``/dev/shm``) or on a disk, which all processes share.
            device: The file system (``st_dev``) that the root must be on. The root is not created then. If a
                mount is lost, the folder below it lies on another file system, which must not fill up.
        """
        self._root = root
        self._device = device

    def path(self, key: str) -> Path:
        """The file of an embedding.

        Raises:
            NotFound: the key is not well-formed. So no path leads out of the root.
        """
        return Path(self._file(key))

    def _file(self, key: str) -> str:
        """``path`` as text, since path objects are a large part of the cost of a small file."""
        if not _KEY.fullmatch(key):
            raise NotFound("no embedding has such a key")
        return f"{self._root}/{key}/{FILE_NAME}"

    def check(self, ref: EmbeddingRef) -> EmbeddingFile:
        """Check that a file is whole and agrees with its reference; raises ``NotFound`` otherwise."""
        file = open_embedding(self.path(ref.key))
        if (file.shape, file.dtype, file.header.get("key")) != (ref.shape, ref.dtype, ref.key):
            raise NotFound(f"embedding file holds {file.dtype} {list(file.shape)}, not what the index says")
        return file

    def stamp(self, key: str) -> FileStamp | None:
        """What differs after a file was replaced or written to; None if there is no file."""
        try:
            found = os.stat(self._file(key))
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def publish(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write a file, unless a good one exists.

        Args:
            ref: What the file will contain.
            data: The tensor, row by row.
            header: Metadata for the file's header.

        Raises:
            ValueError: reference and data disagree.
            BlobSpaceFull: the device is full.
        """

        def is_good() -> bool:
            return self._is_good(ref)

        if os.path.exists(self._file(ref.key)) and is_good():
            return
        self._place(ref.key, lambda fd: write_embedding(fd, ref, data, header), keep=is_good)

    def copy_in(self, key: str, source: BinaryIO, *, keep: bool, checksum: str | None = None) -> str:
        """Copy a file from another folder.

        Args:
            key: The embedding key.
            source: The open file.
            keep: Whether to keep a file that exists. Otherwise it is replaced: it is what a mover left that
                died, no index names it, and so nobody reads it.
            checksum: The checksum that the source must have.

        Returns:
            The checksum of the copy.

        Raises:
            NotFound: the source has another checksum. Nothing was written.
            BlobSpaceFull: the device is full.
            OSError: either device failed otherwise.
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
        """Delete a file. Returns whether there was one. An open file stays readable."""
        path = self.path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            _remove_folder(path)
        # The folder is not empty if another process writes the same embedding again.
        with suppress(OSError):
            path.parent.rmdir()
        return True

    def untouched(self, older_than: float) -> Iterator[str]:
        """Keys of files that are older than that many seconds. Deletes temporary files of that age."""
        limit = time.time() - older_than
        with suppress(FileNotFoundError), os.scandir(self._root) as folders:
            for folder in folders:
                if _KEY.fullmatch(folder.name) and _clean(Path(folder.path), limit):
                    yield folder.name

    def _is_good(self, ref: EmbeddingRef) -> bool:
        try:
            self.check(ref)
        except NotFound:
            return False
        return True

    def _place(self, key: str, fill: Callable[[int], object], *, keep: Callable[[], bool]) -> None:
        """Write a file under its name. If another process was faster, ``keep`` decides about its file."""
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
            # A full device must not keep remains. The folder stays if it contains another file.
            with suppress(OSError):
                os.unlink(temporary)
            with suppress(OSError):
                os.rmdir(folder)
            raise
        with suppress(FileNotFoundError):
            os.unlink(temporary)

    def _make(self, folder: str) -> None:
        """Create the folder of an embedding, and the root if it does not exist."""
        try:
            os.mkdir(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            if self._device is not None:
                raise
            os.makedirs(folder, exist_ok=True)

    def _require_device(self) -> None:
        """Raise ``OSError`` if the root is not on the required file system."""
        if self._device is not None and os.stat(self._root).st_dev != self._device:
            raise OSError(errno.ENODEV, "it is on another file system than at start", str(self._root))


def _link(temporary: str, path: str, keep: Callable[[], bool]) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        if not keep():
            logger.warning("%s: a damaged or unfinished file is replaced", path)
            _remove_folder(Path(path))
            os.replace(temporary, path)


def _remove_folder(path: Path) -> None:
    """Delete a folder that has the name of an embedding file, since it would block that name for ever."""
    if path.is_dir():
        logger.warning("%s is a folder and is deleted", path)
        shutil.rmtree(path)


def _clean(folder: Path, limit: float) -> bool:
    """Delete old temporary files from the folder of an embedding. Returns whether its file is old, too."""
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
