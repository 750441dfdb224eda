"""The transport's poison hook: items that killed their workers too often fail instead of running again."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ValidationError

from epd.contracts.errors import WorkerCrashed
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from tasks.flow.context import Context
from tasks.flow.flights import give_up_decode, give_up_fetch
from tasks.flow.item import DecodeRun, ItemRun
from tasks.process import process_context
from tasks.transport.poison import PoisonMessage

logger = logging.getLogger(__name__)


def on_poison(message: PoisonMessage) -> None:
    """Fail the items of a message with ``worker_crashed``. A second call changes nothing.

    Raises:
        StoreUnavailable: the transport keeps the message and calls again.
    """
    logger.error(
        "task %s[%s] killed its worker %s times; its items fail",
        message.task,
        message.task_id,
        message.deliveries,
    )
    try:
        args, _ = message.arguments()
        fail_document(process_context(), message.task, args[0], message.deliveries)
    except (ValidationError, ValueError, IndexError):
        logger.exception("unreadable poison message; its items end with their deadline")


def fail_document(context: Context, task: str, document: dict[str, Any], deliveries: int) -> None:
    """Fail what a task's document is for, for everyone who waits for it.

    Raises:
        ValidationError: the document is no message of this task.
        StoreUnavailable: the store does not answer; the call can be repeated.
    """
    error = WorkerCrashed(f"the item ended its worker {deliveries} times")
    match task:
        case "epd.fetch":
            chunk = FetchMessage.model_validate(document)
            for item in chunk.items:
                give_up_fetch(ItemRun(context, chunk, item), error)
        case "epd.decode":
            decode = DecodeMessage.model_validate(document)
            give_up_decode(DecodeRun(context, decode, decode.item), error)
        case "epd.encode":
            encode = EncodeMessage.model_validate(document)
            ItemRun(context, encode, encode.item).fail_flight(encode.wanted, error)
            context.store.blobs.free(encode.raw.blob)
