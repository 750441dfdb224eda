"""Embeddings as arrays. numpy has no bfloat16, so bfloat16 rows become float32 there, without loss."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np

from epd.contracts.errors import Internal

#: How to hand out an embedding: a numpy array, a torch tensor, or the safetensors bytes themselves.
Form = Literal["numpy", "torch", "safetensors"]

#: What a server would answer to no slices at all: a safetensors body without a tensor.
NO_SLICES = (8).to_bytes(8, "little") + b"{}      "

_TENSOR = "ec_cache"
_NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
}


def read_embedding(data: bytes, form: Form) -> Any:
    """The tensor [tokens, hidden] of a safetensors body.

    Raises:
        Internal: the body holds no such tensor, or one of an unknown type.
    """
    if form == "safetensors":
        return data
    (rows,) = _tensors(data, [_TENSOR], form)
    return rows


def read_slices(data: bytes, count: int, form: Form) -> Any:
    """The tensors [rows, hidden] of an answer to ``POST /v1/embeddings/slices``, in the order asked for.

    Raises:
        Internal: the body holds another number of tensors, or one of an unknown type.
    """
    if form == "safetensors":
        return data
    return _tensors(data, [str(number) for number in range(count)], form)


def _tensors(data: bytes, names: list[str], form: Form) -> list[Any]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    missing = [name for name in names if name not in header]
    if missing:
        raise Internal(f"the body holds no tensor {missing[0]!r}")
    if form == "torch":
        from safetensors.torch import load

        loaded = load(data)
        return [loaded[name] for name in names]
    body = memoryview(data)[8 + length :]
    return [_numpy_rows(body, header[name]) for name in names]


def _numpy_rows(body: memoryview, info: dict[str, Any]) -> np.ndarray[Any, np.dtype[Any]]:
    begin, end = info["data_offsets"]
    if info["dtype"] == "BF16":
        # A bfloat16 is the upper half of the float32 of the same value.
        halves = np.frombuffer(body[begin:end], dtype="<u2").astype(np.uint32)
        rows = (halves << 16).view(np.float32)
    elif info["dtype"] in _NUMPY_TYPES:
        rows = np.frombuffer(body[begin:end], dtype=_NUMPY_TYPES[info["dtype"]])
    else:
        raise Internal(f"unknown tensor type {info['dtype']!r}")
    return rows.reshape(tuple(info["shape"]))
