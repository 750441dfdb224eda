"""Where an item's bytes may come from: http and https URLs, data inside the request, and uploads.

The address behind a host name is checked by the fetch worker, at each hop; here is refused what can never
be fetched, so that the caller hears of it at once. Messages name the item and never repeat the URL.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from api.schemas import EncodeItem
from epd.contracts.errors import CallerFault, InvalidRequest, MediaTooLarge, SourceRefused
from epd.contracts.media import Modality, Source
from epd.identity import content_digest
from epd.inline import decode_base64, decode_data_uri, is_data_uri
from epd.settings import Settings

MAX_URL = 8192

_SCHEMES = frozenset({"http", "https"})
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")


def resolve_source(item: EncodeItem, place: str, settings: Settings) -> tuple[Source, bytes | None]:
    """An item's source, and its bytes where they came with the request; their digest is the media id.

    Raises:
        SourceRefused: a local path, a scheme other than http, https and data, or a URL with credentials.
        CallerFault: the URL or the inline data is malformed, of no media type, empty or too large.
    """
    if item.media_id is not None:
        return Source(media_id=item.media_id), None
    data = _inline_bytes(item, place)
    if data is None:
        return Source(url=_checked_url(item.url or "", place)), None
    limit = byte_limit(item.type, settings)
    if len(data) > limit:
        raise MediaTooLarge(f"{place}: {len(data)} bytes, the limit of {item.type} is {limit}")
    return Source(media_id=content_digest(data)), data


def byte_limit(modality: Modality, settings: Settings) -> int:
    """The most bytes that a file of this type may have."""
    return {
        Modality.IMAGE: settings.max_image_bytes,
        Modality.AUDIO: settings.max_audio_bytes,
        Modality.VIDEO: settings.max_video_bytes,
    }[modality]


def _inline_bytes(item: EncodeItem, place: str) -> bytes | None:
    try:
        if item.data is not None:
            return decode_base64(item.data)
        if item.url is not None and is_data_uri(item.url):
            return decode_data_uri(item.url).data
    except CallerFault as error:
        raise type(error)(f"{place}.{'url' if item.data is None else 'data'}: {error}") from None
    return None


def _checked_url(url: str, place: str) -> str:
    place = f"{place}.url"
    if len(url) > MAX_URL:
        raise InvalidRequest(f"{place}: longer than {MAX_URL} characters")
    parts = _split(url, place)
    if parts.scheme.lower() not in _SCHEMES:
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
