"""Reads the variables of a CTranslate2 ``model.bin``.

Layout, little-endian, as CTranslate2's ``ModelSpec`` writes it (binary version 6): version u32; spec name;
spec revision u32; count u32; then per variable its name, rank u8, rank dimensions u32, type id u8, size in
bytes u32 and the data. A string is its length u16, including the closing NUL, then its bytes. The aliases at
the end of the file are not needed here.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from epd.contracts.errors import SettingsError

Array = npt.NDArray[Any]

#: CTranslate2's type ids that numpy can hold.
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
MAX_RANK = 8
MAX_VARIABLES = 100_000


def read_variables(path: Path) -> dict[str, Array]:
    """All variables by name, with their stored types and shapes.

    Raises:
        SettingsError: the file is truncated or has another layout.
    """
    with path.open("rb") as stream:
        try:
            return _variables(stream)
        except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
            raise SettingsError(f"{path} is not a CTranslate2 model: {error}") from error


def _variables(stream: BinaryIO) -> dict[str, Array]:
    _number(stream, "I")
    _string(stream)
    _number(stream, "I")
    count = _number(stream, "I")
    if count > MAX_VARIABLES:
        raise ValueError(f"{count} variables")
    return dict(_variable(stream) for _ in range(count))


def _variable(stream: BinaryIO) -> tuple[str, Array]:
    name = _string(stream)
    rank = _number(stream, "B")
    if rank > MAX_RANK:
        raise ValueError(f"{name} has rank {rank}")
    shape = tuple(_number(stream, "I") for _ in range(rank))
    kind = np.dtype(TYPES[_number(stream, "B")]).newbyteorder("<")
    data = _exactly(stream, _number(stream, "I"))
    return name, np.frombuffer(data, kind).reshape(shape)


def _string(stream: BinaryIO) -> str:
    return _exactly(stream, _number(stream, "H"))[:-1].decode("ascii")


def _number(stream: BinaryIO, kind: str) -> int:
    layout = struct.Struct("<" + kind)
    return int(layout.unpack(stream.read(layout.size))[0])


def _exactly(stream: BinaryIO, nbytes: int) -> bytes:
    data = stream.read(nbytes)
    if len(data) != nbytes:
        raise ValueError("cut short")
    return data
