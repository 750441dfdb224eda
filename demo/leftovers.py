"""What a stack may leave behind when it has stopped: processes, and files in ``/dev/shm``.

Other programs use the machine too. A process is ours when its environment names this stack's blob folder; a
file is ours when it was not there before and does not belong to another living stack.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SHM = Path("/dev/shm")
OTHER_STACK = re.compile(r"^epd-(\d+)-")
MARK = "EPD_BLOB_DIR"
PERIOD = 0.1


def shm_names() -> frozenset[str]:
    """What lies in ``/dev/shm`` now; empty on systems without it."""
    return frozenset(entry.name for entry in SHM.iterdir()) if SHM.is_dir() else frozenset()


@dataclass(frozen=True)
class Traces:
    """Recognises what one stack left. Made before the stack starts, asked after it has stopped."""

    settings: Mapping[str, str]
    before: frozenset[str] = field(default_factory=shm_names)

    def left(self, *, within: float) -> list[str]:
        """What is still there after ``within`` seconds, in words; empty when all is gone."""
        end = time.monotonic() + within
        while (found := self._processes() + self._files()) and time.monotonic() < end:
            time.sleep(PERIOD)
        return found

    def _processes(self) -> list[str]:
        return [
            f"process {process.pid} ({process.name()})"
            for process in psutil.process_iter()
            if self._ours(process)
        ]

    def _ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.settings[MARK]
        except psutil.Error:  # gone meanwhile, a zombie, or another user's
            return False

    def _files(self) -> list[str]:
        return [
            f"file {SHM / name}" for name in sorted(shm_names() - self.before) if not _of_another_stack(name)
        ]


def _of_another_stack(name: str) -> bool:
    found = OTHER_STACK.match(name)
    return found is not None and int(found[1]) != psutil.Process().pid and psutil.pid_exists(int(found[1]))
