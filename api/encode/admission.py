"""Admission: checks a request against the config, the encoder cards and the limits. It changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from api.encode.request import Asked, EncodeRequest, resolve_source
from api.errors import seconds_text
from epd.config import Config, ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import EncoderNotReady, InvalidRequest, UnknownModel
from epd.contracts.media import Item, ItemOptions, Modality
from epd.identity import applicable_options
from epd.lookup import tracks_of
from epd.settings import Settings

#: Seconds after which a caller may retry when an encoder is not ready yet.
_READY_AFTER = 5.0


def named_model(request: EncodeRequest, *, config: Config, settings: Settings) -> tuple[str, ModelConfig]:
    """The model that a request asks for, once its limits are checked; raises ``CallerFault``."""
    _check_limits(request, settings)
    return config.model(request.model)


def _check_limits(request: EncodeRequest, settings: Settings) -> None:
    if len(request.items) > settings.max_items:
        raise InvalidRequest(f"items: {len(request.items)} of them, the limit is {settings.max_items}")
    if request.wait > settings.max_wait:
        raise InvalidRequest(f"wait: the limit is {seconds_text(settings.max_wait)}")
    if request.deadline is not None and request.deadline > settings.max_deadline:
        raise InvalidRequest(f"deadline: the limit is {seconds_text(settings.max_deadline)}")


def admit_item(
    index: int,
    asked: Asked,
    *,
    model: ModelConfig,
    cards: Mapping[Modality, EncoderCard],
    settings: Settings,
) -> tuple[Item, bytes | None]:
    """Check one item; the bytes are those that came with it, of which its media id is the digest.

    Raises:
        CallerFault: an option or the source is wrong; the message names the item by ``index``.
        EncoderNotReady: an encoder that the item needs has not been announced yet.
    """
    place = f"items[{index}]"
    source, data = resolve_source(asked, place, settings)
    item = Item(index=index, modality=asked.type, source=source, options=asked.options or ItemOptions())
    try:
        tracks = tracks_of(item, model)
    except UnknownModel as error:
        raise UnknownModel(f"{place}: {error}") from None
    needed = [_card(track, model, cards, place) for track in tracks]
    _check_options(item, asked.given, needed, tracks, place)
    return item, data


def _card(
    track: Modality, model: ModelConfig, cards: Mapping[Modality, EncoderCard], place: str
) -> EncoderCard:
    card = cards.get(track)
    if card is None:
        name = model.encoder_for(track)
        raise EncoderNotReady(f"{place}: encoder {name!r} is not ready yet", retry_after=_READY_AFTER)
    return card


def _check_options(
    item: Item,
    given: frozenset[str],
    cards: list[EncoderCard],
    tracks: tuple[Modality, ...],
    place: str,
) -> None:
    options = item.options
    if not given:
        return
    allowed = {"audio_track"} if item.modality is Modality.VIDEO else set()
    for card, track in zip(cards, tracks, strict=True):
        allowed |= applicable_options(card, track)
    refused = {name for name in given if getattr(options, name) is not None} - allowed
    for name in sorted(refused):
        raise InvalidRequest(
            f"{place}.options.{name}: encoder {cards[0].name!r} takes no such option for {item.modality}"
        )
    _check_order(options, place)


def _check_order(options: ItemOptions, place: str) -> None:
    for unit in ("pixels", "frames"):
        low, high = getattr(options, f"min_{unit}"), getattr(options, f"max_{unit}")
        if low is not None and high is not None and low > high:
            raise InvalidRequest(f"{place}.options: min_{unit} is above max_{unit}")
