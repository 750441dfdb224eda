"""The request of ``POST /v1/encode``. Unknown fields, wrong types and NaN are refused, never bent to fit."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from api.errors import invalid_fields
from epd.contracts.job import Priority
from epd.contracts.media import ItemOptions, Modality

#: Seconds that a request waits for its answer when it does not say: a caller expects embeddings, not a job.
DEFAULT_WAIT = 30.0

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
