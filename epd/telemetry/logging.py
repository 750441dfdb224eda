"""The logging of every process: one line per record on standard error, in UTC."""

from __future__ import annotations

import logging
import time

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(process)d %(name)s: %(message)s"
_DATE = "%Y-%m-%dT%H:%M:%S"


def configure_logging(level: str) -> None:
    """Set up the root logger. Existing handlers (Celery's, pytest's) are kept.

    Raises:
        ValueError: the level is unknown.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    if root.handlers:
        return
    handler = logging.StreamHandler()
    formatter = logging.Formatter(_FORMAT, _DATE)
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root.addHandler(handler)
