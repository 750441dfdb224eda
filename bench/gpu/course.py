"""The cases of a run, one after the other, within a bound of time; one that fails does not end the others."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from gpu_worker.engine.device import is_device_lost

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_log = logging.getLogger(__name__)

Record = TypeVar("Record", bound="DataclassInstance")


class Course:
    """Runs cases while there is time, tells of each on standard error, and keeps what went wrong.

    A run that is killed has told its figures until then.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._end = self._begun + seconds
        self._lost = False
        self.left_out: list[str] = []
        self.failed: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begun

    def run(self, name: str, case: Callable[[], Record]) -> list[Record]:
        """What the case gives, as a list of one; empty where it failed or there was no time for it."""
        if self._lost or self._clock() >= self._end:
            self.left_out.append(name)
            return []
        try:
            record = case()
        except Exception as error:
            _log.exception("%s failed", name)
            self.failed[name] = f"{type(error).__name__}: {error}"
            self._lost = is_device_lost(error)
            return []
        sys.stderr.write(f"{self.seconds:6.1f} s  {name}  {json.dumps(asdict(record))}\n")
        sys.stderr.flush()
        return [record]
