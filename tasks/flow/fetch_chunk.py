"""A chunk of items through ``fetch``, side by side, with one producer batch for all that goes on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor

from epd.contracts.errors import EpdError, StoreUnavailable
from epd.contracts.media import Item
from epd.contracts.messages import FetchMessage
from tasks.flow.context import Context, Tally
from tasks.flow.fetch_item import Fetched, fetch_item, free_source, give_up
from tasks.flow.refetch import pause_of

logger = logging.getLogger(__name__)


def fetch_chunk(context: Context, message: FetchMessage, executor: Executor) -> Tally:
    """Fetch every item of a chunk and publish what goes on; returns what is to be counted.

    Raises:
        StoreUnavailable: the broker did not take the messages; the whole chunk may be run again.
    """
    results = list(zip(message.items, _fetch_all(context, message, executor), strict=True))
    decodes = [result.decode for _, result in results if result.decode is not None]
    try:
        context.publisher.decode(decodes)
        _postpone(context, message, [(item, result.reason) for item, result in results])
    except StoreUnavailable:
        for decode in decodes:
            free_source(context, decode.blob)
        raise
    return _sum(result.tally for _, result in results)


def _sum(tallies: Iterable[Tally]) -> Tally:
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return {str(name): amount for name, amount in total.items() if amount}


def _fetch_all(context: Context, message: FetchMessage, executor: Executor) -> Iterable[Fetched]:
    """The items' outcomes in order. The calling thread fetches the last one itself."""
    *others, last = message.items
    running = [executor.submit(fetch_item, context, message, item) for item in others]
    own = fetch_item(context, message, last)
    return [*(future.result() for future in running), own]


def _postpone(context: Context, message: FetchMessage, results: list[tuple[Item, EpdError | None]]) -> None:
    """Fetch postponed items again in one later chunk; those that have no time left fail with their reason."""
    later = [(item, reason) for item, reason in results if reason is not None]
    if not later:
        return
    pause = pause_of(context, message)
    if pause is not None:
        logger.info("job %s: %d items postponed: %s", message.job_id, len(later), later[0][1])
        chunk = message.model_copy(update={"items": tuple(item for item, _ in later)})
        context.publisher.fetch([chunk], countdown=pause)
        return
    for item, reason in later:
        give_up(context, message, item, reason)
