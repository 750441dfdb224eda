"""Conversions at the client's edges: from a caller's items to a request, and from an answer to tensors."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from epd.contracts.errors import Internal, InvalidRequest
from epd.contracts.media import Modality

#: A path, a URL, or a mapping with ``type`` and one of ``url``, ``path``, ``data`` (bytes), ``media_id``.
ItemLike = str | Path | Mapping[str, Any]
#: The form of an embedding: a numpy array, a torch tensor, or the safetensors bytes themselves.
Form = Literal["numpy", "torch", "safetensors"]

#: What a server would answer to a request for no slices: a safetensors body without tensors.
NO_SLICES = (8).to_bytes(8, "little") + b"{}      "

#: Types of file names that ``mimetypes`` does not know on every system.
_MORE_TYPES = {".heic": "image", ".avif": "image", ".webp": "image", ".opus": "audio", ".flac": "audio"}
_MORE_TYPES |= {".mkv": "video", ".webm": "video", ".m4a": "audio", ".ts": "video"}

#: The name of the one tensor in the body of an embedding.
_TENSOR = "ec_cache"
_NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """An item of the request body. ``upload`` is a local file whose media id is still to be filled in."""

    body: dict[str, Any]
    upload: Path | None = None


def prepare(item: ItemLike, type_: str | None = None) -> Prepared:
    """Convert one item for the request body; raises ``InvalidRequest`` naming what is missing."""
    if isinstance(item, Mapping):
        return _from_mapping(dict(item), type_)
    text = str(item)
    if is_url(text):
        return Prepared({"type": type_ or guess_type(text), "url": _sendable(text)})
    upload = _existing(Path(text))  # before its type: a folder or a missing file has none
    return Prepared({"type": type_ or guess_type(text)}, upload=upload)


def _from_mapping(body: dict[str, Any], type_: str | None) -> Prepared:
    path = body.pop("path", None)
    if "type" not in body:
        body["type"] = type_ or guess_type(str(path or body.get("url") or ""))
    if isinstance(body.get("data"), bytes | bytearray | memoryview):
        body["data"] = base64.b64encode(body["data"]).decode()
    return Prepared(body, upload=None if path is None else _existing(Path(path)))


def is_url(text: str) -> bool:
    """Whether the text is a URL (http://, https:// or data:...,...) and not a local path."""
    scheme, colon, rest = text.partition(":")
    if scheme.lower() == "data":
        return "," in rest
    return scheme.lower() in {"http", "https"} and bool(colon) and rest.startswith("//")


def guess_type(name: str) -> str:
    """``image``, ``video`` or ``audio``, from the ending of a name or the type of a data URI.

    Raises:
        InvalidRequest: the name does not show a type.
    """
    if is_url(name) and name[:5].lower() == "data:":
        family = name[5:].split("/", 1)[0].lower()
    else:
        # Only the ending: mimetypes would take "data:x.png" for a URL.
        ending = Path(urlsplit(name).path if is_url(name) else name).suffix.lower()
        found = mimetypes.guess_type(f"name{ending}")[0] or ""
        family = _MORE_TYPES.get(ending) or found.split("/", 1)[0]
    if family not in set(Modality):
        choice = ", ".join(Modality)
        raise InvalidRequest(f"cannot tell the type of {name[:200]!r}; say it (type, or --type): {choice}")
    return family


def _sendable(url: str) -> str:
    try:
        url.encode()
    except UnicodeEncodeError as error:  # bytes from a shell that are not UTF-8; JSON cannot carry them
        raise InvalidRequest(f"not a URL: {url[:200]!r}") from error
    return url


def _existing(path: Path) -> Path:
    name = str(path)[:200]
    try:
        if path.is_dir():
            raise InvalidRequest(f"{name} is a folder; name its files, as in '{path / '*'}'")
        if not path.is_file():
            raise InvalidRequest(f"no such file: {name}")
        path.open("rb").close()
    except OSError as error:
        raise InvalidRequest(f"cannot read {name}: {error.strerror}") from error
    return path


def read_embedding(data: bytes, form: Form) -> Any:
    """The tensor [tokens, hidden] of a safetensors body.

    Raises:
        Internal: the tensor is missing or has an unknown type.
    """
    if form == "safetensors":
        return data
    (rows,) = _tensors(data, [_TENSOR], form)
    return rows


def read_slices(data: bytes, count: int, form: Form) -> Any:
    """The ``count`` tensors [rows, hidden] of an answer to ``POST /v1/embeddings/slices``, in order.

    Raises:
        Internal: a tensor is missing or has an unknown type.
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
