"""The request of ``POST /v1/encode`` and its admission: checks against config, encoder cards and limits.

Unknown fields, wrong types and NaN are refused, never coerced. Nothing is changed anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from api.encode.sources import GivenSource, resolve_source
from api.errors import invalid_request, seconds_text
from epd.config import Config, ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import EncoderNotReady, InvalidRequest, UnknownModel
from epd.contracts.job import Priority
from epd.contracts.media import Item, ItemOptions, Modality
from epd.identity import applicable_options
from epd.lookup import tracks_of
from epd.settings import Settings

#: Seconds that a request waits for its answer by default: a caller expects embeddings, not a job.
DEFAULT_WAIT = 30.0
#: Seconds after which a caller may retry when an encoder is not ready yet.
_READY_AFTER = 5.0

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
    """What happens to a job when its caller leaves while the request waits."""

    CONTINUE = "continue"  #: it goes on, for the cache and for a look at it by its id
    CANCEL = "cancel"  #: what is not final yet is cancelled


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
        raise invalid_request(error) from None


def named_model(request: EncodeRequest, *, config: Config, settings: Settings) -> tuple[str, ModelConfig]:
    """The model that a request asks for, once its limits are checked; raises ``CallerFault``."""
    if len(request.items) > settings.max_items:
        raise InvalidRequest(f"items: {len(request.items)} of them, the limit is {settings.max_items}")
    if request.wait > settings.max_wait:
        raise InvalidRequest(f"wait: the limit is {seconds_text(settings.max_wait)}")
    if request.deadline is not None and request.deadline > settings.max_deadline:
        raise InvalidRequest(f"deadline: the limit is {seconds_text(settings.max_deadline)}")
    return config.model(request.model)


def admit_item(
    index: int,
    given: GivenSource,
    options: ItemOptions,
    *,
    model: ModelConfig,
    cards: Mapping[Modality, EncoderCard],
    settings: Settings,
) -> tuple[Item, bytes | None]:
    """Check one item against its model.

    Args:
        index: The item's place in the request, for messages.
        given: Its type and source.
        options: Its options. One that the caller set to its default is refused too where it does not apply.
        model: The model.
        cards: The cards of the model's encoders, by track.
        settings: The limits.

    Returns:
        The item, and its bytes if they came with the request; their digest is its media id.

    Raises:
        CallerFault: an option or the source is wrong; the message names the item by ``index``.
        EncoderNotReady: an encoder that the item needs has not been announced yet.
    """
    place = f"items[{index}]"
    source, data = resolve_source(given, place, settings)
    item = Item(index=index, modality=given.type, source=source, options=options)
    try:
        tracks = tracks_of(item, model)
    except UnknownModel as error:
        raise UnknownModel(f"{place}: {error}") from None
    _check_options(item, [_card(track, model, cards, place) for track in tracks], tracks, place)
    return item, data


def _card(
    track: Modality, model: ModelConfig, cards: Mapping[Modality, EncoderCard], place: str
) -> EncoderCard:
    card = cards.get(track)
    if card is None:
        name = model.encoder_for(track)
        raise EncoderNotReady(f"{place}: encoder {name!r} is not ready yet", retry_after=_READY_AFTER)
    return card


def _check_options(item: Item, cards: Sequence[EncoderCard], tracks: Sequence[Modality], place: str) -> None:
    options = item.options
    if not options.model_fields_set:
        return
    allowed = {"audio_track"} if item.modality is Modality.VIDEO else set()
    for card, track in zip(cards, tracks, strict=True):
        allowed |= applicable_options(card, track)
    given = {name for name in options.model_fields_set if getattr(options, name) is not None}
    for name in sorted(given - allowed):
        raise InvalidRequest(
            f"{place}.options.{name}: encoder {cards[0].name!r} takes no such option for {item.modality}"
        )
    for unit in ("pixels", "frames"):
        low, high = getattr(options, f"min_{unit}"), getattr(options, f"max_{unit}")
        if low is not None and high is not None and low > high:
            raise InvalidRequest(f"{place}.options: min_{unit} is above max_{unit}")
