"""Writing media bytes to a file: all of them, or a typed error."""

from __future__ import annotations

import errno
from typing import BinaryIO

from epd.contracts.errors import BlobSpaceFull, Internal


def write_all(into: BinaryIO, piece: bytes | memoryview) -> None:
    """Write and flush all of ``piece``, also to an unbuffered file.

    Raises ``BlobSpaceFull`` when the file cannot grow, ``Internal`` when it cannot be written to at all.
    """
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[into.write(rest) :]
        into.flush()
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise BlobSpaceFull("no room left for media in the blob directory") from error
        raise Internal("the blob directory cannot be written to") from error
