"""Celery's request for an encode message, without two ways of Celery's that cost time in each of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery.worker.request import Request


class EncodeRequest(Request):
    """A request that reads its times quickly.

    Celery looks its time zone up through all of its settings, though only an ``expires`` without a zone
    needs it and Celery's publishers write UTC; and it reads ISO times with a general parser.
    """

    _tzlocal = UTC

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, maybe_iso8601=parse_time, **fields)


def parse_time(text: Any) -> datetime | None:
    """A time in ISO 8601 (``datetime.fromisoformat``); a time or None goes through as it is.

    Raises:
        ValueError, TypeError: it is no such time, which Celery answers by refusing the message.
    """
    return text if text is None or isinstance(text, datetime) else datetime.fromisoformat(text)
