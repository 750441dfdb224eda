"""Reads records that another version of the code may have written: what cannot be read is as if not there."""

from __future__ import annotations

import logging
from typing import TypeVar

from pydantic import ValidationError

from epd.contracts.wire import Wire

logger = logging.getLogger(__name__)

Record = TypeVar("Record", bound=Wire)


def read_record(kind: type[Record], text: str | None) -> Record | None:
    """The record of a JSON text; None, and a line in the log, when there is none or it cannot be read."""
    if text is None:
        return None
    try:
        return kind.from_json(text)
    except ValidationError as error:
        logger.warning("a %s cannot be read: %s", kind.__name__, error)
        return None
