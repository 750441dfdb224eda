"""What the worker's main process does when a task ends: count it, and fail the item of a killed one."""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.request import Request

from epd.contracts.errors import DecodeTimeout, EpdError
from epd.contracts.messages import DecodeMessage
from tasks.worker_counters import count_crash, count_result

logger = logging.getLogger(__name__)


class CountedRequest(Request):
    """A request whose outcome is counted."""

    def on_success(self, failed__retval__runtime: tuple[bool, Any, float], **kwargs: Any) -> Any:
        """Called when the task has returned or raised, in every pool."""
        failed, result, _ = failed__retval__runtime
        if not failed:
            count_result(str(result))
        return super().on_success(failed__retval__runtime, **kwargs)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Called when the task has raised or its child has died."""
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
        from tasks.flow.decode_item import fail_decode
        from tasks.process import process_context

        try:
            message = DecodeMessage.model_validate(self.args[0])
            fail_decode(process_context(), message, DecodeTimeout("decoding hung and was killed"))
        except (EpdError, ValueError, IndexError):
            logger.exception("task %s was killed; its item ends with its flight's lease", self.id)
