"""Flights of downloads: items of any process that need one URL at the same time share one download.

The first item is the leader and downloads. The others are waiters: they leave their message with the flight
and are done. When the download ends, the leader has its waiters join the flights of the embeddings, or fails
them with the error of the download. ``fetch`` does so, or ``decode`` for a video whose parts depend on
whether it has audio. If a leader dies, its own message runs again, or the reaper publishes the message of a
waiter once the lease has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pydantic import ValidationError

from epd.contracts.errors import CallerFault, EncoderNotReady, EpdError, SourceFault
from epd.contracts.messages import FetchMessage
from epd.identity import download_key, source_key
from epd.store.flights import Download
from epd.store.values import Waiter
from tasks.flow.item import DecodeRun, ItemRun
from tasks.flow.settle import join

logger = logging.getLogger(__name__)


def download_of(run: ItemRun) -> Download | None:
    """The download of an item, for those who share it; None if the item has no URL."""
    url = run.item.source.url
    if url is None:
        return None
    return Download(download_key(url, run.item.modality), source_key(url), run.waiter(run.main_part))


@contextmanager
def leading(run: ItemRun) -> Iterator[None]:
    """Renew the lease of the download while the block runs; a fault of the URL fails all waiters too."""
    try:
        with run.context.leases.keep([_flight_of(run)]):
            yield
    except (CallerFault, SourceFault) as error:
        fail_waiters(run, error)
        raise


def serve_waiters(run: ItemRun, digest: str, first: Sequence[Waiter] | None = None) -> None:
    """The download is done: have every waiter join the flights of its embeddings.

    ``first`` are waiters that were taken already, if any were.
    """

    def serve(waiter: ItemRun) -> bool:
        try:
            return join(waiter, digest)
        except EncoderNotReady:
            return False
        except CallerFault as error:
            waiter.fail(error)
            return True

    _take_waiters(run, serve, first)


def fail_waiters(run: ItemRun, error: EpdError) -> None:
    """The download has failed for good: fail the item of every waiter."""

    def serve(waiter: ItemRun) -> bool:
        waiter.fail(error)
        return True

    _take_waiters(run, serve)


def leave_download(run: ItemRun) -> None:
    """Leave the flight of a download that was not made, and publish the first waiter's message instead."""
    if run.item.source.url is None:
        return
    flights = run.context.store.flights
    successor = flights.withdraw(_flight_of(run), run.message.job_id, run.main_part)
    if successor is not None:
        run.context.publisher.fetch([FetchMessage.from_json(successor)])


def give_up_fetch(run: ItemRun, error: EpdError) -> None:
    """Fail an item that cannot be fetched; the first waiter, if there is one, downloads instead."""
    run.fail(error)
    leave_download(run)


def give_up_decode(run: DecodeRun, error: EpdError) -> None:
    """Fail what a decode message is for, for everyone who waits for it, and free its bytes."""
    for wanted in run.wanted:
        run.fail_flight(wanted, error)
    fail_waiters(run, error)
    run.free_source()


def waiter_message(text: str) -> FetchMessage | None:
    """The message that a waiter left with its flight; an unreadable one is logged, and the answer is None."""
    try:
        return FetchMessage.from_json(text)
    except ValidationError:
        logger.exception("a waiter left an unreadable message; its item ends with its deadline")
        return None


def _take_waiters(
    run: ItemRun, serve: Callable[[ItemRun], bool], first: Sequence[Waiter] | None = None
) -> None:
    """Serve all waiters, also those that arrive during the call. Does nothing if the item is not the leader.

    ``serve`` returns False for an item that has to start again. Its message is published last, because it
    would otherwise find this flight and wait for it.
    """
    if run.item.source.url is None:
        return
    again: list[FetchMessage] = []
    take = partial(run.context.store.flights.take_waiters, _flight_of(run), run.message.job_id, run.main_part)
    served = take([]) if first is None else first
    while served:
        for message in filter(None, [waiter_message(waiter.message) for waiter in served]):
            if not serve(ItemRun(run.context, message, message.items[0])):
                again.append(message)
        served = take(served)
    if again:
        run.context.publisher.fetch(again)


def _flight_of(run: ItemRun) -> str:
    return download_key(run.item.source.url or "", run.item.modality)
