"""The task ``epd.encode``, declared only: the batching pool of ``gpu_worker`` does its work.

An ordinary worker refuses to start on the queue ``encode`` (``tasks.queues``). Should one be told to
consume it while it runs (``celery control add_consumer encode``), the body below puts the message back for
the right worker.
"""

from __future__ import annotations

import logging
from typing import Any

from epd.contracts.errors import StoreUnavailable
from epd.contracts.messages import EncodeMessage
from tasks.celery import app

logger = logging.getLogger(__name__)


@app.task(name="epd.encode")
def encode(document: dict[str, Any]) -> dict[str, float]:
    """Give the message back: this process cannot encode.

    Raises:
        Reject: the broker did not take it back, so the delivery itself goes back unacked.
    """
    from tasks.publish import publish_encode
    from tasks.redo import redo_later

    logger.error("epd.encode reached a worker without the batching pool; start `python -m gpu_worker`")
    message = EncodeMessage.model_validate(document)
    trouble = StoreUnavailable("this worker has no batching pool")
    return redo_later(lambda pause: publish_encode([message], countdown=pause), trouble)
