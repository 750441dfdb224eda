"""Media given inside a request: ``data:`` URIs (RFC 2397) and plain base64 (RFC 4648), read strictly.

Accepted: either base64 alphabet, with or without padding, folded with CR and LF, ``%XX`` escapes in a URI,
any parameters before ``;base64``, any letter case of scheme, type and mark, and no type at all. Refused:
text and SVG types, percent-coded data without ``;base64``, any other character (a space is a ``+`` that
a form decoder spoilt), mixed alphabets, no data, and text that was cut off. The type that a caller states
is not trusted beyond that: the bytes decide.
"""

from __future__ import annotations

import binascii
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from epd.contracts.errors import EmptyMedia, InvalidRequest, UnsupportedMedia

_SCHEME = "data:"
_MEDIA_KINDS = frozenset({"image", "audio", "video", "application", "binary"})
_SVG = "image/svg+xml"


class InlineMedia(NamedTuple):
    """Bytes from inside a request, and the type that the caller states (lower case), if any."""

    data: bytes
    mime: str | None


def is_data_uri(url: str) -> bool:
    """Whether a URL carries its own bytes."""
    return url[: len(_SCHEME)].lower() == _SCHEME


def decode_data_uri(uri: str) -> InlineMedia:
    """The bytes of a ``data:`` URI.

    Raises:
        InvalidRequest: it is not a base64 data URI, or its base64 is broken.
        UnsupportedMedia: its type is not one of media.
        EmptyMedia: it holds no data.
    """
    header, comma, payload = uri.partition(",")
    if not is_data_uri(uri) or not comma:
        raise InvalidRequest("data URI: no comma between type and data")
    mime, *parameters = (field.strip().lower() for field in header[len(_SCHEME) :].split(";"))
    _check_type(mime)
    if not parameters or parameters[-1] != "base64":
        raise InvalidRequest("data URI: only base64 data is taken, marked by ';base64' before the comma")
    raw = unquote_to_bytes(payload) if "%" in payload else _ascii(payload)
    return InlineMedia(_decoded(raw), mime or None)


def decode_base64(text: str) -> bytes:
    """The bytes of plain base64 text.

    Raises:
        InvalidRequest: a character outside the alphabet, or the text was cut off.
        EmptyMedia: it holds no data.
    """
    return _decoded(_ascii(text))


def _check_type(mime: str) -> None:
    kind, slash, _ = mime.partition("/")
    if mime and not slash:
        raise InvalidRequest("data URI: the type has no '/'")
    if mime and (kind not in _MEDIA_KINDS or mime == _SVG):
        raise UnsupportedMedia("data URI: its type is not an image, audio or video type")


def _ascii(text: str) -> bytes:
    try:
        return text.encode("ascii")
    except UnicodeEncodeError as error:
        raise InvalidRequest("base64: a character outside the alphabet") from error


def _decoded(raw: bytes) -> bytes:
    text = raw.translate(None, b"\r\n")
    if b"-" in text or b"_" in text:
        if b"+" in text or b"/" in text:
            raise InvalidRequest("base64: both alphabets in one text")
        text = text.translate(bytes.maketrans(b"-_", b"+/"))
    if text.find(b"=") == -1:
        text += b"=" * (-len(text) % 4)
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise InvalidRequest(f"base64: {str(error).lower()}") from error
    if not data:
        raise EmptyMedia("no data in the request's base64 text")
    if binascii.b2a_base64(data[-(len(data) % 3 or 3) :], newline=False) != text[-4:]:
        raise InvalidRequest("base64: the text was cut off")
    return data
