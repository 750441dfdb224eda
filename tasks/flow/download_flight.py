"""One download of a URL, however many want it at once, and from whatever process.

Who comes first flies: it downloads. The others leave their message with the flight and are done; the flyer
takes them along into the flight of the embedding, or ends them with the error of the download. For a video
whose sound decides its parts that happens in ``decode``, else in ``fetch``. A flyer that dies is run again
with its own message, or a reaper starts one of the others when the lease is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pydantic import ValidationError

from epd.contracts.errors import CallerFault, EncoderNotReady, EpdError
from epd.contracts.media import Item
from epd.contracts.messages import Envelope, FetchMessage
from epd.identity import download_key
from epd.store.values import Claim, Companion
from tasks.flow.context import Context
from tasks.flow.parts import fail_item, main_part
from tasks.flow.refetch import waiter_of
from tasks.flow.settling import join

logger = logging.getLogger(__name__)

#: Serves one companion; False: its message has to start anew.
_Serve = Callable[[FetchMessage, Item], bool]


def take_off(context: Context, message: Envelope, item: Item) -> bool:
    """Ask for the download of an item's URL. False: another flies, and serves this item too."""
    waiter = waiter_of(message, item, main_part(item))
    return context.store.flights.claim(_key(item), waiter) is not Claim.WAITING


def take_along(context: Context, message: Envelope, item: Item, digest: str) -> None:
    """The download is there: whoever waited for it joins the flight of its embedding."""

    def serve(companion: FetchMessage, its: Item) -> bool:
        try:
            return join(context, companion, its, digest)
        except EncoderNotReady:
            return False
        except CallerFault as error:
            fail_item(context, companion, its, error)
            return True

    _land(context, message, item, serve)


def fail_along(context: Context, message: Envelope, item: Item, error: EpdError) -> None:
    """The download failed for good, and with it the items of all who waited for it."""

    def serve(companion: FetchMessage, its: Item) -> bool:
        fail_item(context, companion, its, error)
        return True

    _land(context, message, item, serve)


def call_off(context: Context, message: Envelope, item: Item) -> None:
    """Leave the flight of a download that was not made; the first of those who wait makes it."""
    if item.source.url is None:
        return
    heir = context.store.flights.withdraw(_key(item), message.job_id, main_part(item))
    if heir is not None:
        context.publisher.fetch([FetchMessage.from_json(heir)])


def _land(context: Context, message: Envelope, item: Item, serve: _Serve) -> None:
    """Serve all companions, those that come meanwhile too. Nothing happens where the item does not fly.

    Who has to start anew is published last: before, it would find this flight and wait in it.
    """
    if item.source.url is None:
        return
    again: list[FetchMessage] = []
    served: list[Companion] = []
    land = context.store.flights.land
    while served := land(_key(item), message.job_id, main_part(item), served):
        for companion in map(_read, served):
            if companion is not None and not serve(companion, companion.items[0]):
                again.append(companion)
    if again:
        context.publisher.fetch(again)


def _key(item: Item) -> str:
    return download_key(item.source.url or "", item.modality)


def _read(companion: Companion) -> FetchMessage | None:
    try:
        return FetchMessage.from_json(companion.message)
    except ValidationError:
        logger.exception("a waiter left an unreadable message; its item ends with its deadline")
        return None
