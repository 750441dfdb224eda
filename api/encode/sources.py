"""Where the bytes of an item come from: an http or https URL, data inside the request, or an upload.

A URL that can never be fetched is refused here, so that the caller knows at once. The fetch worker checks the
address behind a host name at each hop. Messages never repeat a URL.

Data inside a request is a ``data:`` URI (RFC 2397) or plain base64 (RFC 4648), read strictly. Accepted:
either base64 alphabet, with or without padding, folded with CR and LF, ``%XX`` escapes in a URI, any
parameters before ``;base64``, any letter case of scheme, type and mark, and no type at all. Refused: text and
SVG types, percent-coded data without ``;base64``, any other character (a space is a ``+`` that a form decoder
spoilt), mixed alphabets, no data, and text that was cut off. The type that a caller states is not trusted
beyond that: the bytes decide.
"""

from __future__ import annotations

import binascii
import re
from typing import NamedTuple
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from epd.contracts.errors import (
    CallerFault,
    EmptyMedia,
    InvalidRequest,
    MediaTooLarge,
    SourceRefused,
    UnsupportedMedia,
)
from epd.contracts.media import Modality, Source
from epd.identity import content_digest
from epd.settings import Settings

#: Characters of a URL.
MAX_URL = 8192

_FETCHED_SCHEMES = frozenset({"http", "https"})
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")
_DATA_SCHEME = "data:"
_MEDIA_KINDS = frozenset({"image", "audio", "video", "application", "binary"})
_SVG = "image/svg+xml"


class GivenSource(NamedTuple):
    """The type of an item and its source as the caller gave it: one of the other three fields is set."""

    type: Modality
    url: str | None
    data: str | None
    media_id: str | None


def resolve_source(given: GivenSource, place: str, settings: Settings) -> tuple[Source, bytes | None]:
    """An item's source, and its bytes if they came with the request; their digest is the media id.

    Raises:
        SourceRefused: a local path, a scheme other than http, https and data, or a URL with credentials.
        CallerFault: the URL or the inline data is malformed, of no media type, empty or too large.
    """
    if given.media_id is not None:
        return Source(media_id=given.media_id), None
    data = _inline_bytes(given, place)
    if data is None:
        return Source(url=_checked_url(given.url or "", f"{place}.url")), None
    limit = byte_limit(given.type, settings)
    if len(data) > limit:
        raise MediaTooLarge(f"{place}: {len(data)} bytes, the limit of {given.type} is {limit}")
    return Source(media_id=content_digest(data)), data


def byte_limit(modality: Modality, settings: Settings) -> int:
    """The most bytes that a file of this type may have."""
    return {
        Modality.IMAGE: settings.max_image_bytes,
        Modality.AUDIO: settings.max_audio_bytes,
        Modality.VIDEO: settings.max_video_bytes,
    }[modality]


def is_data_uri(url: str) -> bool:
    """Whether a URL carries its own bytes."""
    return url[: len(_DATA_SCHEME)].lower() == _DATA_SCHEME


def decode_data_uri(uri: str) -> bytes:
    """The bytes of a ``data:`` URI.

    Raises:
        InvalidRequest: it is not a base64 data URI, or its base64 is broken.
        UnsupportedMedia: its type is not a media type.
        EmptyMedia: it holds no data.
    """
    header, comma, payload = uri.partition(",")
    if not is_data_uri(uri) or not comma:
        raise InvalidRequest("data URI: no comma between type and data")
    mime, *parameters = (field.strip().lower() for field in header[len(_DATA_SCHEME) :].split(";"))
    _check_type(mime)
    if not parameters or parameters[-1] != "base64":
        raise InvalidRequest("data URI: only base64 data is taken, marked by ';base64' before the comma")
    return _decoded(unquote_to_bytes(payload) if "%" in payload else _ascii(payload))


def decode_base64(text: str) -> bytes:
    """The bytes of plain base64 text.

    Raises:
        InvalidRequest: a character outside the alphabet, or the text was cut off.
        EmptyMedia: it holds no data.
    """
    return _decoded(_ascii(text))


def _inline_bytes(given: GivenSource, place: str) -> bytes | None:
    try:
        if given.data is not None:
            return decode_base64(given.data)
        if given.url is not None and is_data_uri(given.url):
            return decode_data_uri(given.url)
    except CallerFault as error:
        raise type(error)(f"{place}.{'url' if given.data is None else 'data'}: {error}") from None
    return None


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


def _checked_url(url: str, place: str) -> str:
    if len(url) > MAX_URL:
        raise InvalidRequest(f"{place}: longer than {MAX_URL} characters")
    parts = _split(url, place)
    if parts.scheme.lower() not in _FETCHED_SCHEMES:
        raise SourceRefused(f"{place}: only http, https and data URLs are taken; upload files to /v1/media")
    if _UNPRINTABLE.search(url):
        raise InvalidRequest(f"{place}: white space or a control character")
    if "@" in parts.netloc:
        raise SourceRefused(f"{place}: credentials inside a URL are refused")
    if not parts.hostname:
        raise InvalidRequest(f"{place}: no host")
    return url


def _split(url: str, place: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises when it is not a port number
    except ValueError:
        raise InvalidRequest(f"{place}: not a URL") from None
    return parts
