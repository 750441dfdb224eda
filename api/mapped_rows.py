"""Rows of an embedding file as they lie in the page cache: mapped, never read into this process's memory.

A file is written once and never changed or cut, so a mapping stays whole even where the file is removed
while it is sent: the pages live as long as the mapping.
"""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO

from epd.contracts.errors import NotFound

#: Pages are mapped at once, in the thread that maps, so that none is waited for on the event loop.
_FLAGS = mmap.MAP_SHARED | mmap.MAP_POPULATE


def map_rows(file: BinaryIO, offset: int, nbytes: int) -> memoryview:
    """Bytes [offset, offset + nbytes) of an open file, read-only; the mapping ends with its last view.

    Raises:
        NotFound: the file is shorter than that, or cannot be mapped.
    """
    first = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + nbytes - first
    try:
        if os.fstat(file.fileno()).st_size < offset + nbytes:
            raise NotFound("embedding file is damaged: it became shorter")
        area = mmap.mmap(file.fileno(), length, flags=_FLAGS, prot=mmap.PROT_READ, offset=first)
    except OSError as error:
        raise NotFound(f"embedding file: {error.strerror}") from error
    return memoryview(area)[offset - first :]
