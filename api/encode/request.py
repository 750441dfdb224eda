"""The request of ``POST /v1/encode``, and where the bytes of its items may come from.

Unknown fields, wrong types and NaN are refused, never coerced. Sources are http and https URLs, data inside
the request, and uploads. The address behind a host name is checked by the fetch worker at each hop; what can
never be fetched is refused here, so that the caller learns it at once. Messages never repeat the URL.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from api.encode.data_uri import decode_base64, decode_data_uri, is_data_uri
from api.errors import invalid_fields
from epd.contracts.errors import CallerFault, InvalidRequest, MediaTooLarge, SourceRefused
from epd.contracts.job import Priority
from epd.contracts.media import ItemOptions, Modality, Source
from epd.identity import content_digest
from epd.settings import Settings

#: Seconds that a request waits for its answer when it does not say: a caller expects embeddings, not a job.
DEFAULT_WAIT = 30.0
MAX_URL = 8192

_SCHEMES = frozenset({"http", "https"})
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")

Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
CallerId = Annotated[str, StringConstraints(max_length=256)]
MediaId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_EXAMPLE: dict[str, Any] = {
    "items": [
        {"type": "image", "url": "https://example.com/cat.jpg", "id": "cat"},
        {"type": "video", "media_id": "0" * 64, "options": {"audio_track": "require"}},
        {"type": "audio", "data": "T2dnUwACAAAAAAAAAAA="},
    ],
    "wait": 30,
    "priority": "interactive",
}


class EncodeItem(BaseModel):
    """One item: exactly one of ``url`` (http, https or data:), ``data`` (base64) or ``media_id``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: Modality
    url: str | None = Field(default=None, description="http, https or data: URL")
    data: str | None = Field(default=None, description="the bytes in base64")
    media_id: MediaId | None = Field(default=None, description="an upload of POST /v1/media")
    id: CallerId | None = Field(default=None, description="the caller's own id, given back as it is")
    options: ItemOptions = ItemOptions()

    @model_validator(mode="after")
    def _one_source(self) -> EncodeItem:
        if [self.url, self.data, self.media_id].count(None) != 2:
            raise ValueError("exactly one of url, data, media_id")
        return self


class Asked(NamedTuple):
    """What an item asks for, without the caller's own id: equal ones are admitted alike.

    ``options`` is None where the caller set none. ``given`` names those that it set, since one that is set to
    its default is refused where it does not apply.
    """

    type: Modality
    url: str | None
    data: str | None
    media_id: str | None
    options: ItemOptions | None = None
    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, item: EncodeItem) -> Asked:
        """What an item of a request asks for."""
        if not item.options.model_fields_set:
            return cls(item.type, item.url, item.data, item.media_id)
        given = frozenset(item.options.model_fields_set)
        return cls(item.type, item.url, item.data, item.media_id, item.options, given)


class OnDisconnect(StrEnum):
    """What becomes of a job whose caller leaves while its request waits."""

    CONTINUE = "continue"  #: it goes on, for the cache and for whoever asks for it by its id
    CANCEL = "cancel"  #: what is not final is cancelled


class EncodeRequest(BaseModel):
    """Items to encode. ``wait`` and ``deadline`` are seconds from now."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra={"examples": [_EXAMPLE]}
    )

    items: list[EncodeItem] = Field(min_length=1)
    model: Name | None = Field(default=None, description="a model of GET /v1/models; default: the config's")
    wait: float = Field(default=DEFAULT_WAIT, ge=0, description="seconds to wait for the answer; 0: none")
    priority: Priority = Priority.INTERACTIVE
    deadline: float | None = Field(default=None, gt=0, description="seconds to live, up to EPD_MAX_DEADLINE")
    on_disconnect: OnDisconnect = Field(
        default=OnDisconnect.CONTINUE, description="the job's fate when the caller leaves while it waits"
    )


def parse_request(body: bytes | bytearray) -> EncodeRequest:
    """Read a request body; raises ``InvalidRequest`` naming the fields at fault."""
    try:
        return EncodeRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(found) from None


def resolve_source(item: Asked, place: str, settings: Settings) -> tuple[Source, bytes | None]:
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


def _inline_bytes(item: Asked, place: str) -> bytes | None:
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
