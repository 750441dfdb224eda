"""Admission: a request against the config, the encoder cards and the limits. It changes nothing anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api.errors import in_seconds
from api.schemas import EncodeItem, EncodeRequest, OnDisconnect
from api.sources import resolve_source
from epd.config import Config, ModelConfig
from epd.contracts.card import EncoderCard
from epd.contracts.errors import EncoderNotReady, InvalidRequest, UnknownModel
from epd.contracts.media import Item, ItemOptions, Modality
from epd.identity import applicable_options
from epd.lookup import tracks_of
from epd.settings import Settings

#: Seconds after which a caller may come again when an encoder is not ready yet.
_READY_AFTER = 5.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may run. ``inline`` holds the bytes that came with it, by media id."""

    name: str
    model: ModelConfig
    cards: Mapping[Modality, EncoderCard]
    items: tuple[Item, ...]
    inline: Mapping[str, bytes]
    wait: float
    on_disconnect: OnDisconnect


def named_model(request: EncodeRequest, *, config: Config, settings: Settings) -> tuple[str, ModelConfig]:
    """The model that a request asks for, once its limits are checked; raises ``CallerFault``."""
    _check_limits(request, settings)
    return config.model(request.model)


def admit(
    request: EncodeRequest,
    *,
    name: str,
    model: ModelConfig,
    cards: Mapping[Modality, EncoderCard],
    settings: Settings,
) -> Admitted:
    """Check a request of a ``named_model`` wholly; the first fault refuses all of it, and names the item.

    Raises:
        CallerFault: an option or a source is wrong.
        EncoderNotReady: an encoder of the model has not been announced yet.
    """
    inline: dict[str, bytes] = {}
    items: list[Item] = []
    for index, asked in enumerate(request.items):
        item, data = admit_item(index, asked, model=model, cards=cards, settings=settings)
        items.append(item)
        if data is not None and item.source.media_id is not None:
            inline[item.source.media_id] = data
    return Admitted(
        name=name,
        model=model,
        cards=cards,
        items=tuple(items),
        inline=inline,
        wait=request.wait,
        on_disconnect=request.on_disconnect,
    )


def _check_limits(request: EncodeRequest, settings: Settings) -> None:
    if len(request.items) > settings.max_items:
        raise InvalidRequest(f"items: {len(request.items)} of them, the limit is {settings.max_items}")
    if request.wait > settings.max_wait:
        raise InvalidRequest(f"wait: the limit is {in_seconds(settings.max_wait)}")
    if request.deadline is not None and request.deadline > settings.max_deadline:
        raise InvalidRequest(f"deadline: the limit is {in_seconds(settings.max_deadline)}")


def admit_item(
    index: int,
    asked: EncodeItem,
    *,
    model: ModelConfig,
    cards: Mapping[Modality, EncoderCard],
    settings: Settings,
) -> tuple[Item, bytes | None]:
    """Check one item; the bytes are those that came with it, of which its media id is the digest.

    Raises:
        CallerFault, EncoderNotReady: as ``admit``.
    """
    place = f"items[{index}]"
    source, data = resolve_source(asked, place, settings)
    item = Item(index=index, modality=asked.type, source=source, options=asked.options)
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


def _check_options(item: Item, cards: list[EncoderCard], tracks: tuple[Modality, ...], place: str) -> None:
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
    _check_order(options, place)


def _check_order(options: ItemOptions, place: str) -> None:
    for unit in ("pixels", "frames"):
        low, high = getattr(options, f"min_{unit}"), getattr(options, f"max_{unit}")
        if low is not None and high is not None and low > high:
            raise InvalidRequest(f"{place}.options: min_{unit} is above max_{unit}")
