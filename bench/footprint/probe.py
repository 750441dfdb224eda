"""Records which product functions run in a process while a window is open.

``bench.footprint`` copies this file as ``sitecustomize.py`` into a folder of its own and puts that folder
on ``PYTHONPATH``, so every Python process of a stack loads it before anything else. It uses three kinds of
files, all in that folder:

- ``tree``: the path of the checkout whose code counts.
- ``window``: one byte. 0 means closed, any other value is the number of the open window.
- ``<pid>.calls``: the output. The first line is the command of the process. Every other line is the number
  of a window and a call path, separated by tabs. Lines are written at once, because workers may be killed.

A call path holds the product functions on the stack, outermost first, as ``file:qualified.name``. Frames of
libraries are left out. A function that was waiting when the window opened counts once it continues. The
code of a module or a class is not a function, and what runs while a module is imported does not count.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

#: Top-level folders that are not the product. Everything else in the tree is, except hidden folders.
NOT_PRODUCT = frozenset({"bench", "demo", "docker", "docs", "examples", "shared", "tests"})

#: Flag of a code object that is a function. Modules and class bodies lack it.
_IS_FUNCTION = 0x1
_IMPORTING = "importing"


class Probe:
    """The profile function of a process, and what it has seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tree = (folder / "tree").read_text("utf-8") + os.sep
        with (folder / "window").open("rb") as file:
            self._window = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        # By id, because code objects of different files can be equal. Each is kept, so no id is used twice.
        self._names: dict[int, tuple[str, CodeType]] = {}
        self._seen: set[tuple[str, ...]] = set()
        self._command = " ".join(sys.orig_argv[1:])
        self._file = -1

    def start(self) -> None:
        """Watch this thread, all threads that start later, and all forks."""
        os.register_at_fork(after_in_child=self._begin_fork)
        threading.setprofile(self.watch)
        sys.setprofile(self.watch)

    def watch(self, frame: FrameType, event: str, arg: object) -> None:
        """The profile function. It takes every event, as a waiting function continues without a call."""
        window = self._window[0]
        if not window or not self._name(frame.f_code):
            return
        path = self._path(frame)
        if not path:
            return
        record = (str(window), *path)
        if record not in self._seen:
            self._seen.add(record)
            self._write("\t".join(record))

    def _path(self, frame: FrameType) -> list[str]:
        """The product functions on the stack; none while a module is being imported."""
        path: list[str] = []
        caller: FrameType | None = frame
        while caller is not None:
            name = self._name(caller.f_code)
            if name == _IMPORTING:
                return []
            if name:
                path.append(name)
            caller = caller.f_back
        return path[::-1]

    def _name(self, code: CodeType) -> str:
        known = self._names.get(id(code))
        if known is None:
            known = self._names[id(code)] = (self._new_name(code), code)
        return known[0]

    def _new_name(self, code: CodeType) -> str:
        if code.co_filename.startswith("<frozen importlib"):
            return _IMPORTING
        path = os.path.realpath(code.co_filename)
        is_ours = os.path.isabs(code.co_filename) and path.startswith(self._tree)  # not ``<string>``
        if not is_ours or not code.co_flags & _IS_FUNCTION:
            return ""
        file = path.removeprefix(self._tree)
        top = file.split(os.sep)[0]
        return "" if top in NOT_PRODUCT or top.startswith(".") else f"{file}:{code.co_qualname}"

    def _write(self, line: str) -> None:
        if self._file < 0:
            path = self._folder / f"{os.getpid()}.calls"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
            line = " ".join(self._command.split()) + "\n" + line
        os.write(self._file, (line + "\n").encode())

    def _begin_fork(self) -> None:
        self._seen.clear()
        self._file = -1  # the parent's; the next line opens one for this process
        self._command = self._command.removesuffix(" (fork)") + " (fork)"


if __name__ == "sitecustomize":
    Probe(Path(__file__).resolve().parent).start()
