"""What the worker's main process does when a task ends: count it, and fail the item of a killed one."""

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


class CountedRequest(Request):
    """A request whose outcome is counted."""

    def send_event(self, type: str, **fields: Any) -> Any:
        """Called for each event of the task, in every pool.

        Counting hangs on the event since Celery's optimised request class replaces ``on_success`` without
        calling ours; ``celeryconfig`` has events on in every worker.
        """
        if type == "task-succeeded":
            count_result(str(fields.get("result")))
        return super().send_event(type, **fields)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Called when the task has raised or its child has died; a message given back is no failure."""
        exception = exc_info.exception
        if not isinstance(getattr(exception, "exc", exception), Reject):
            count_crash(self.task_name)
        return super().on_failure(exc_info, *args, **kwargs)


class DecodeRequest(CountedRequest):
    """A decode whose item fails with ``decode_timeout`` when its child is killed by the hard time limit."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Called for both limits; the soft one is the task's own business."""
        super().on_timeout(soft, timeout)
        if not soft:
            self._fail_item()

    def _fail_item(self) -> None:
        from tasks.flow.flights import give_up_decode
        from tasks.flow.item import DecodeRun
        from tasks.process import process_context

        try:
            context, message = process_context(), DecodeMessage.model_validate(self.args[0])
            run = DecodeRun(context, message, message.item)
            give_up_decode(run, DecodeTimeout("decoding hung and was killed"))
        except (EpdError, ValueError, IndexError):
            logger.exception("task %s was killed; its item ends with its flight's lease", self.id)


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
