"""An HTTP answer: its body, copied within the limits of a download, and how long it may be reused."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, BinaryIO

import requests
import urllib3

from epd.contracts.errors import MediaTooLarge, SourceRejected
from workers.fetch.connection import Exchange
from workers.limits import write_all

if TYPE_CHECKING:
    from hashlib import _Hash


#: Most bytes of one read.
_PIECE = 1 << 18
#: Bytes reserved first for a body of unknown length; the reservation doubles each time it is used up.
_FIRST_RESERVE = 4 * _PIECE
#: Codings that urllib3 decodes or that change nothing: object stores leave ``aws-chunked`` on uploads.
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "identity", "aws-chunked", ""})


def copy_body(answer: requests.Response, current: Exchange, into: BinaryIO, hasher: _Hash) -> int:
    """Write the decoded body to ``into`` and feed it to ``hasher``.

    Returns:
        The length of the body in bytes.

    Raises:
        MediaTooLarge: the stated or the real length is over the limit.
        SourceTimeout: the deadline passed.
        SourceRejected: the content coding is unknown or does not decode.
        BlobSpaceFull: space for the body cannot be reserved.
        urllib3.exceptions.HTTPError: the connection broke off.
    """
    limit = current.limits.max_bytes
    held = _checked_length(answer.headers, limit) or min(_FIRST_RESERVE, limit)
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
    """The result of one read of the socket, so that a slow drip of bytes cannot outlast the deadline."""
    while True:
        try:
            piece = raw.read1(_PIECE, decode_content=True)
        except urllib3.exceptions.DecodeError:
            raise SourceRejected("the body does not match its content coding") from None
        if piece or _is_done(raw):
            return piece


def _is_done(raw: urllib3.HTTPResponse) -> bool:
    """Whether an empty read is the end of the body, and not a decoder that needs more input."""
    source = raw._original_response
    return raw.closed or source is None or source.isclosed()


def _checked_length(headers: Mapping[str, str], limit: int) -> int:
    """The stated length in bytes; 0 if there is none."""
    codings = {coding.strip().lower() for coding in headers.get("Content-Encoding", "").split(",")}
    if not codings <= _CODINGS:
        # urllib3 would return an unknown coding undecoded, and it would be hashed as if it were the media.
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


#: An entity tag, quoted or not, of at most 512 characters: a longer one would make every memo large.
_TAG = re.compile(r"[\x21-\x7e\x80-\xff]{1,512}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reuse:
    """How an answer may be reused.

    Attributes:
        etag: entity tag to revalidate with.
        last_modified: HTTP date to revalidate with.
        max_age: seconds for which the answer is fresh; None if it does not say.
    """

    etag: str | None = None
    last_modified: str | None = None
    max_age: float | None = None


def reuse_of(headers: Mapping[str, str]) -> Reuse:
    """Read the headers of an answer.

    After ``no-store`` there is nothing to revalidate with, so the next request downloads again. Next to an
    entity tag the date is left out: a server that compares dates instead could not distinguish two changes
    within one second. For the same reason a date counts only if it was over a second old when it was sent.
    """
    directives = dict(_directives(headers.get("Cache-Control", "")))
    if "no-store" in directives:
        return Reuse(max_age=0.0)
    age = _max_age(headers, directives)
    tag = headers.get("ETag")
    if tag is not None:
        return Reuse(etag=tag if _TAG.fullmatch(tag) else None, max_age=age)
    return Reuse(last_modified=_settled_date(headers), max_age=age)


def _directives(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        yield name.lower(), value.strip('"')


def _max_age(headers: Mapping[str, str], directives: Mapping[str, str]) -> float | None:
    """Seconds for which an answer is fresh; None if it does not say.

    A memo is shared by many requests, so ``s-maxage`` precedes ``max-age``. All requests have the same
    headers, so the only ``Vary`` that matters is ``*``, which matches no later request.
    """
    if "no-cache" in directives or headers.get("Vary", "").strip() == "*":
        return 0.0
    for name in ("s-maxage", "max-age"):
        if directives.get(name, "").isdecimal():
            age = headers.get("Age", "")
            return max(0.0, float(directives[name][:12]) - (float(age[:12]) if age.isdecimal() else 0.0))
    if "Expires" not in headers:
        return None
    sent, expires = _moment(headers.get("Date")), _moment(headers.get("Expires"))
    return max(0.0, expires - sent) if sent is not None and expires is not None else 0.0


def _settled_date(headers: Mapping[str, str]) -> str | None:
    changed, sent = _moment(headers.get("Last-Modified")), _moment(headers.get("Date"))
    settled = changed is not None and sent is not None and sent - changed > 1.0
    return headers.get("Last-Modified") if settled else None


def _moment(text: str | None) -> float | None:
    """Unix seconds of an HTTP date; None if there is none or it cannot be parsed."""
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
