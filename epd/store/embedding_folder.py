"""The folder of embedding files: ``<root>/<key>/encoder_cache.safetensors``, published write-once.

A file appears whole or not at all (temporary file in the same folder, fsync, link) and a good one that is
there already is kept: renaming over a file that somebody reads gave readers wrong tensors (DESIGN 4).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from epd.contracts.errors import BlobSpaceFull, NotFound
from epd.contracts.metadata import EmbeddingRef
from epd.store.embedding_file import FILE_NAME, EmbeddingFile, open_embedding, write_embedding

logger = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = ".tmp-"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Another process may remove the empty folder between its making and the file's.
_ATTEMPTS = 3


class EmbeddingFolder:
    """Files of embeddings below one root, which is made on first use."""

    def __init__(self, root: Path) -> None:
        """Use this root; it should be in memory (``/dev/shm``) or on a disk that all processes share."""
        self._root = root

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

    def publish(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write the file once.

        Raises:
            ValueError: reference and data disagree.
            BlobSpaceFull: no room is left on the device of the root.
        """
        path = self._file(ref.key)
        for attempt in range(_ATTEMPTS):
            if os.path.exists(path) and self._is_good(ref):
                return
            try:
                self._write(path, ref, data, header)
                return
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise BlobSpaceFull("no room left for embeddings") from error
                raise

    def remove(self, key: str) -> bool:
        """Delete a file; True when it was there. A reader that has it open keeps it."""
        path = self.path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        # Not empty: somebody writes the same embedding anew.
        with suppress(OSError):
            path.parent.rmdir()
        return True

    def untouched(self, older_than: float) -> list[str]:
        """Keys of files not written for that many seconds. Temporary files of that age are deleted."""
        limit = time.time() - older_than
        old: list[str] = []
        with suppress(FileNotFoundError):
            for folder in os.scandir(self._root):
                if _KEY.fullmatch(folder.name) and _settle(Path(folder.path), limit):
                    old.append(folder.name)
        return old

    def _is_good(self, ref: EmbeddingRef) -> bool:
        try:
            self.check(ref)
        except NotFound:
            return False
        return True

    def _write(self, path: str, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        folder = os.path.dirname(path)
        self._make(folder)
        temporary = f"{folder}/{_TEMPORARY}{os.urandom(16).hex()}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                write_embedding(fd, ref, data, header)
                os.fsync(fd)
            finally:
                os.close(fd)
            self._link(temporary, path, ref)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _make(self, folder: str) -> None:
        """The folder of one embedding, and the root where this is the first."""
        try:
            os.mkdir(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)

    def _link(self, temporary: str, path: str, ref: EmbeddingRef) -> None:
        try:
            os.link(temporary, path)
        except FileExistsError:
            if not self._is_good(ref):
                logger.warning("embedding %s: a damaged file is replaced", ref.key)
                os.replace(temporary, path)


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
