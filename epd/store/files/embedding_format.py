"""The file of one embedding: safetensors with exactly one tensor, ``ec_cache`` [tokens, hidden].

Format (https://github.com/huggingface/safetensors, "Format"): 8 bytes little-endian header length, a JSON
header padded with spaces so that data starts at a multiple of 8, then the data. It is written by hand because
the library copies the tensor and has no bfloat16 without torch. The tests read the files with the library.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from epd.contracts.embedding import EmbeddingRef, Metadata
from epd.contracts.errors import NotFound

TENSOR = "ec_cache"
FILE_NAME = "encoder_cache.safetensors"

#: Bytes per element, by the name of the dtype in references.
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: The names of the same dtypes in safetensors.
DTYPE_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_NAMES = {code: name for name, code in DTYPE_CODES.items()}

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8
_MAX_HEADER = 1 << 20

#: Bytes that are read at once. Reading and hashing this much both release the GIL.
_PIECE = 1 << 20
#: Hex digits of a checksum, which is the beginning of a sha256.
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class EmbeddingFile:
    """A checked file: its tensor, where the ``nbytes`` of data begin, and the header's metadata."""

    path: Path
    shape: tuple[int, int]
    dtype: str
    offset: int
    nbytes: int
    header: dict[str, str]

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """The offset in the file and the size in bytes of rows [start, stop).

        Raises:
            ValueError: not 0 <= start <= stop <= tokens.
        """
        if not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"rows {start}:{stop} of {self.shape[0]}")
        row = self.shape[1] * ITEM_BYTES[self.dtype]
        return self.offset + start * row, (stop - start) * row


def header_of(metadata: Metadata) -> dict[str, str]:
    """The metadata in a file's header, which identifies an embedding without the index."""
    header = {
        "content_digest": metadata.content_digest,
        "encoder": metadata.encoder,
        "modality": metadata.modality.value,
    }
    if metadata.grid_thw is not None:
        header["grid_thw"] = ",".join(str(side) for side in metadata.grid_thw)
    return header


def encode_header(shape: tuple[int, int], dtype: str, nbytes: int, header: dict[str, str]) -> bytes:
    """The bytes before the data: length, JSON and padding.

    Raises:
        ValueError: the dtype is unknown, or shape, dtype and size disagree.
    """
    if dtype not in DTYPE_CODES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPE_CODES)}")
    if shape[0] * shape[1] * ITEM_BYTES[dtype] != nbytes:
        raise ValueError(f"{nbytes} bytes are not a {dtype} tensor of {shape}")
    tensor = {"dtype": DTYPE_CODES[dtype], "shape": list(shape), "data_offsets": [0, nbytes]}
    text = orjson.dumps({"__metadata__": header, TENSOR: tensor})
    text += b" " * (-(len(text) + _LENGTH.size) % _ALIGNMENT)
    return _LENGTH.pack(len(text)) + text


def write_embedding(fd: int, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
    """Write an embedding to an open file. The header gets ``key`` and ``tokens``, too.

    Raises:
        ValueError: shape, dtype and data disagree.
        OSError: the device failed or is full.
    """
    if data.nbytes != ref.nbytes:
        raise ValueError(f"{data.nbytes} bytes of data, the reference says {ref.nbytes}")
    own = {**header, "key": ref.key, "tokens": str(ref.tokens)}
    _write_all(fd, encode_header(ref.shape, ref.dtype, ref.nbytes, own))
    _write_all(fd, data)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything. One write takes at most 2 GB, and less when the device fills up."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(fd, left) :]


def open_regular(path: Path, *, buffered: bool = True) -> BinaryIO:
    """Open a file for reading. Anything else of that name, such as a pipe, is not waited for.

    Raises:
        NotFound: it is not a regular file.
        OSError: it cannot be opened; ``FileNotFoundError`` if there is none.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotFound("embedding file: it is not a regular file")
        return os.fdopen(fd, "rb", buffering=-1 if buffered else 0)
    except BaseException:
        os.close(fd)
        raise


def open_embedding(path: Path) -> EmbeddingFile:
    """Check a file by its header and its size.

    Raises:
        NotFound: there is no such file, or it is not a whole embedding.
    """
    try:
        with open_regular(path, buffered=False) as file:
            return read_header(path, file)
    except OSError as error:
        raise NotFound(f"embedding file: {error.strerror}") from error


def read_header(path: Path, file: Any) -> EmbeddingFile:
    """Check a file that is open at its start.

    Raises:
        NotFound: it is not a whole embedding.
        OSError: it cannot be read.
    """
    try:
        return _parse(path, file)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise NotFound(f"embedding file is damaged: {error}") from error


def _parse(path: Path, file: Any) -> EmbeddingFile:
    size = os.fstat(file.fileno()).st_size
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    if length > min(_MAX_HEADER, size):
        raise ValueError(f"header of {length} bytes")
    fields = json.loads(file.read(length))
    header, tensor = fields.pop("__metadata__", {}), fields.pop(TENSOR)
    rows, hidden = tensor["shape"]
    if not (isinstance(header, dict) and type(rows) is type(hidden) is int and min(rows, hidden) >= 0):
        raise ValueError("header is not of an embedding")
    dtype, offset = _NAMES[tensor["dtype"]], _LENGTH.size + length
    nbytes = rows * hidden * ITEM_BYTES[dtype]
    if fields or tensor["data_offsets"] != [0, nbytes] or size != offset + nbytes:
        raise ValueError(f"{size} bytes do not hold one {dtype} tensor of [{rows}, {hidden}]")
    return EmbeddingFile(path, (rows, hidden), dtype, offset, nbytes, header)


def copy_all(source: BinaryIO, fd: int) -> str:
    """Copy a file from its start and return its checksum; raises ``OSError``."""
    hasher = hashlib.sha256()
    source.seek(0)
    while piece := source.read(_PIECE):
        hasher.update(piece)
        _write_all(fd, piece)
    return hasher.hexdigest()[:_DIGITS]


def checksum_of(source: BinaryIO) -> str:
    """The checksum of a file from its start; raises ``OSError``."""
    hasher = hashlib.sha256()
    source.seek(0)
    while piece := source.read(_PIECE):
        hasher.update(piece)
    return hasher.hexdigest()[:_DIGITS]
