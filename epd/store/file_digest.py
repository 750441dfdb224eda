"""Checksums of files in the second tier: of all bytes, header and data, made while they are copied.

64 bits of a sha256: they are there to find what a disk or a network file system spoilt, and resist nobody.
"""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

#: Bytes that are read at once; both hashing and reading of so many let other threads run.
_PIECE = 1 << 20
_DIGITS = 16


def copy_all(source: BinaryIO, fd: int) -> str:
    """Copy a file from its start and return its checksum; raises ``OSError`` as reading or writing does."""
    hasher = hashlib.sha256()
    source.seek(0)
    while piece := source.read(_PIECE):
        hasher.update(piece)
        left = memoryview(piece)
        while left:
            left = left[os.write(fd, left) :]
    return hasher.hexdigest()[:_DIGITS]


def checksum_of(source: BinaryIO) -> str:
    """The checksum of a file from its start; raises ``OSError`` as reading does."""
    hasher = hashlib.sha256()
    source.seek(0)
    while piece := source.read(_PIECE):
        hasher.update(piece)
    return hasher.hexdigest()[:_DIGITS]
