"""Running a message again when the store or the broker did not answer. Nothing of it is lost meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from celery.exceptions import Reject

from epd.contracts.errors import StoreUnavailable
from epd.telemetry.counters import Count

logger = logging.getLogger(__name__)

#: Seconds until the next try.
PAUSE = 2.0

#: Tries to put the message back on its queue. A delivery that is rejected counts as one that a worker died
#: of, so the broker gets its time first.
_TRIES = 30


def redo_later(republish: Callable[[float], None], trouble: StoreUnavailable) -> dict[str, float]:
    """Publish the message anew, to start ``PAUSE`` seconds later, so that this delivery can be acked.

    Args:
        republish: puts the message on its queue, with a countdown in seconds.
        trouble: what went wrong, for the log.

    Raises:
        Reject: the broker does not take it either, so this delivery goes back to its queue unacked.
    """
    logger.warning("message postponed: %s", trouble)
    for _ in range(_TRIES):
        try:
            republish(PAUSE)
        except StoreUnavailable as error:
            trouble = error
            time.sleep(PAUSE)
        else:
            return {Count.RETRIED_ITEMS.value: 1}
    raise Reject(str(trouble), requeue=True)
