"""Copy the body of an answer to a file, piece by piece, within its bounds; read ``Retry-After``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, BinaryIO

import requests
import urllib3

from epd.contracts.errors import MediaTooLarge, SourceRejected
from workers.fetch.connection import Exchange
from workers.limits import write_all

if TYPE_CHECKING:
    from hashlib import _Hash

_PIECE = 1 << 18
#: Room that is held at once for a body of unknown length; each time it is used up, it is doubled.
_FIRST_ROOM = 4 * _PIECE
#: What is undone, and what changes nothing (object stores leave ``aws-chunked`` on finished uploads).
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "identity", "aws-chunked", ""})


def copy_body(answer: requests.Response, current: Exchange, into: BinaryIO, hasher: _Hash) -> int:
    """Write the decoded body to ``into`` and feed ``hasher``; return its length in bytes.

    Raises ``MediaTooLarge`` at once when the stated or the real length is over the limit, ``SourceTimeout``
    at the deadline, ``SourceRejected`` for a content coding that does not decode, ``BlobSpaceFull`` when its
    room cannot be held, and urllib3's own errors for a connection that breaks off.
    """
    limit = current.limits.max_bytes
    held = _checked_length(answer.headers, limit) or min(_FIRST_ROOM, limit)
    current.limits.hold(held)
    nbytes = 0
    while piece := _next_piece(answer.raw):
        current.remaining()
        nbytes += len(piece)
        if nbytes > limit:
            raise too_large(limit)
        if nbytes > held:
            held = min(max(2 * held, nbytes), limit)
            current.limits.hold(held)
        hasher.update(piece)
        write_all(into, piece)
    # The deadline shuts the socket, which reads as the end of a body without a stated length.
    current.remaining()
    return nbytes


def _next_piece(raw: urllib3.HTTPResponse) -> bytes:
    """What one read of the socket brings, so that dripping bytes cannot hold us past the deadline."""
    while True:
        try:
            piece = raw.read1(_PIECE, decode_content=True)
        except urllib3.exceptions.DecodeError:
            raise SourceRejected("the body does not match its content coding") from None
        if piece or _is_done(raw):
            return piece


def _is_done(raw: urllib3.HTTPResponse) -> bool:
    """Whether an empty read is the end, not a decoder that waits for more input."""
    source = raw._original_response
    return raw.closed or source is None or source.isclosed()


def _checked_length(headers: Mapping[str, str], limit: int) -> int:
    """The stated length in bytes, 0 where there is none."""
    codings = {coding.strip().lower() for coding in headers.get("Content-Encoding", "").split(",")}
    if not codings <= _CODINGS:
        # An unknown coding would be handed on as it is, and hashed as if it were the media.
        raise SourceRejected("the body has a content coding that was not asked for")
    stated = headers.get("Content-Length", "")
    length = int(stated[:20]) if stated.isdecimal() else 0
    if length > limit:
        raise too_large(limit)
    return length


def too_large(limit: int) -> MediaTooLarge:
    """The error for a body over ``limit`` bytes."""
    return MediaTooLarge(f"the media is larger than {limit} bytes")


def delay_of(headers: Mapping[str, str]) -> float | None:
    """``Retry-After`` in seconds from now (RFC 9110, 10.2.3: seconds or a date), if there is a valid one."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    try:
        seconds = float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
