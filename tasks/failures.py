"""What happens when a task does not end well: counts, items of killed children, and messages to run again.

The request classes run in the worker's main process; ``redo_later`` and ``fail_decode`` also in its children.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery.exceptions import Reject
from celery.worker.request import Request

from epd.contracts.errors import DecodeTimeout, EpdError, StoreUnavailable
from epd.contracts.messages import DecodeMessage
from epd.telemetry.counters import Count
from tasks.worker.counters import count_crash, count_result

logger = logging.getLogger(__name__)

#: Seconds until a message that could not be handled starts again.
PAUSE = 2.0

#: Tries to publish a message again. A rejected delivery counts as one that killed its worker, so the broker
#: first gets a minute to recover.
_TRIES = 30


class CountedRequest(Request):
    """A request whose outcome is counted."""

    def send_event(self, type: str, **fields: Any) -> Any:
        """Called for each event of the task, in every pool.

        Counting uses the event because Celery's optimised request class replaces ``on_success`` without
        calling ours; ``celeryconfig`` enables events in every worker.
        """
        if type == "task-succeeded":
            count_result(str(fields.get("result")))
        return super().send_event(type, **fields)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Called when the task has raised or its child has died. A rejected message is not a failure."""
        exception = exc_info.exception
        if not isinstance(getattr(exception, "exc", exception), Reject):
            count_crash(self.task_name)
        return super().on_failure(exc_info, *args, **kwargs)


class DecodeRequest(CountedRequest):
    """A decode whose item fails with ``decode_timeout`` when its child is killed by the hard time limit."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Called for both limits; the task handles the soft one itself."""
        super().on_timeout(soft, timeout)
        if soft:
            return
        try:
            message = DecodeMessage.model_validate(self.args[0])
            fail_decode(message, DecodeTimeout("decoding hung and was killed"))
        except (EpdError, ValueError, IndexError):
            logger.exception("task %s was killed; its item ends when the lease of its flight ends", self.id)


def fail_decode(message: DecodeMessage, error: EpdError) -> None:
    """Fail what a decode message is for, for everyone who waits for it.

    Raises:
        StoreUnavailable: the store does not answer; the call can be repeated.
    """
    from tasks.flow.flights import give_up_decode
    from tasks.flow.item import DecodeRun
    from tasks.process import process_context

    give_up_decode(DecodeRun(process_context(), message, message.item), error)


def redo_later(republish: Callable[[float], None], reason: StoreUnavailable) -> dict[str, float]:
    """Publish the message again, to start ``PAUSE`` seconds later, so that this delivery can be acked.

    Args:
        republish: puts the message on its queue, with a countdown in seconds.
        reason: why the message was not handled, for the log.

    Returns:
        What to count.

    Raises:
        Reject: the broker does not take the message, so this delivery goes back to its queue unacked.
    """
    logger.warning("message postponed: %s", reason)
    for _ in range(_TRIES):
        try:
            republish(PAUSE)
        except StoreUnavailable as error:
            reason = error
            time.sleep(PAUSE)
        else:
            return {Count.RETRIED_ITEMS.value: 1}
    raise Reject(str(reason), requeue=True)
