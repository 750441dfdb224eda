"""Finds what a stopped stack has left behind: processes, and files in ``/dev/shm``.

Other programs use the machine too; a browser often writes files to ``/dev/shm``. So a process counts as the
stack's if its environment has this stack's blob folder. A file counts if it is new, unless it has the name of
another stack's folder or a running process uses it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SHM = Path("/dev/shm")
NAMED_BY_EPD = re.compile(r"epd-(\w+)-")
MARK = "EPD_BLOB_DIR"
PERIOD = 0.1


def shm_names() -> frozenset[str]:
    """The names in ``/dev/shm`` now; empty on systems without it."""
    return frozenset(entry.name for entry in SHM.iterdir()) if SHM.is_dir() else frozenset()


@dataclass(frozen=True)
class Leftovers:
    """The leftovers of one stack. ``before`` has the names in ``/dev/shm`` before the stack started."""

    settings: Mapping[str, str]
    before: frozenset[str] = field(default_factory=shm_names)

    def found(self, *, within: float) -> list[str]:
        """Describe what is still there after ``within`` seconds; empty when nothing is."""
        end = time.monotonic() + within
        while (found := self._processes() + self._files()) and time.monotonic() < end:
            time.sleep(PERIOD)
        return found

    def _processes(self) -> list[str]:
        return [
            f"process {process.pid} ({process.name()})"
            for process in psutil.process_iter()
            if self._is_of_stack(process)
        ]

    def _is_of_stack(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.settings[MARK]
        except psutil.Error:  # it has ended, is a zombie, or belongs to another user
            return False

    def _files(self) -> list[str]:
        new = sorted(shm_names() - self.before)
        return [f"file {SHM / name}" for name in new if not _of_another_stack(name) and not _used(SHM / name)]


def _of_another_stack(name: str) -> bool:
    found = NAMED_BY_EPD.match(name)
    return found is not None and found[1] != str(os.getpid())


def _used(path: Path) -> bool:
    """Whether a running process maps or has opened ``path`` or something below it."""
    return any(str(path) in text for process in Path("/proc").glob("[0-9]*") for text in _used_by(process))


def _used_by(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        yield (process / "maps").read_text()
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(descriptor)
