"""Whether there is capacity for a job, by counters: one round trip to the store and none to the broker.

The store's bound on items and bytes in flight is exact: a job holds its own from admission until its parts
are final. Other things that grow have bounds too: waiting requests, files in the blob directory, and messages
that nobody needs any more (a caller may cancel faster than workers drop).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from api.services import Services
from epd.contracts.errors import EpdError, Overloaded
from epd.contracts.job import JobRecord
from epd.contracts.media import NOMINAL_BYTES, Item
from epd.store.admissions import Load
from epd.store.values import BlobKind

logger = logging.getLogger(__name__)

#: Seconds after which a refused caller may retry.
RETRY_AFTER = 2.0
#: A job may hold its items so many seconds past its deadline: workers end them, and that takes a while.
_GRACE = 60.0
#: Messages in the broker, in multiples of the items: one item has two at most (a video's frames and sound).
_MESSAGES_AN_ITEM = 2


@contextmanager
def capacity_for(
    services: Services, record: JobRecord, todo: Sequence[Item], sizes: dict[int, int]
) -> Iterator[None]:
    """Hold a job's capacity while the block starts it; when the block raises, nothing is held.

    Args:
        services: The application's services.
        record: The job.
        todo: Its items that are not answered by the cache; without any, everything fits.
        sizes: Bytes of items by index, where they are known.

    Raises:
        Overloaded: there is no capacity; nothing has changed anywhere.
        StoreUnavailable: store or broker do not answer.
    """
    if not todo:
        yield
        return
    _check_counters(services, todo)
    nbytes = sum(sizes.get(item.index, NOMINAL_BYTES[item.modality]) for item in todo)
    until = record.deadline + _GRACE
    load, admissions = Load(len(todo), nbytes), services.store.admissions
    if not admissions.admit(record.job_id, load, priority=record.priority, until=until):
        raise _overloaded(f"{record.priority} items and bytes in flight are at their bound")
    try:
        yield
    except BaseException:
        with suppress(EpdError):  # else the store itself finds that there is no such job
            admissions.release(record.job_id)
        raise


def _check_counters(services: Services, todo: Sequence[Item]) -> None:
    if services.completions.full:
        raise _overloaded("too many requests wait at once")
    if services.depth.last_total() > _MESSAGES_AN_ITEM * services.settings.max_queue_items:
        raise _overloaded("too many messages wait in the queues")
    downloads = any(item.source.url is not None for item in todo)
    if downloads and services.store.blobs.room(BlobKind.SOURCE) <= 0:
        raise _overloaded("the blob directory is full")


def _overloaded(reason: str) -> Overloaded:
    return Overloaded(reason, retry_after=RETRY_AFTER)
