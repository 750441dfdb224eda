"""Run ffmpeg on one seekable file: bounded in time and output, with its messages read while it works.

ffmpeg runs in its own process group and is killed with it. Its own CPU time limit ends it should we be
killed first. Only the ``file`` protocol is open to it, and its demuxer is named, never guessed.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from epd.contracts.errors import DecodeTimeout, Internal

_KEPT_LINES = 20
_LINE_LIMIT = 4096
_FAILURES = ("[error]", "[fatal]", "[panic]")


@dataclass(frozen=True)
class FfmpegRun:
    """How a run ended. ``failures`` counts its error lines; ``last`` holds the end of its messages."""

    code: int
    failures: int
    last: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The first error line without ffmpeg's own prefix, path and addresses; safe to show."""
        lines = [line for line in self.last if any(mark in line for mark in _FAILURES)]
        text = re.sub(r"^(\[[^\]]*\] ?)+|file:\S+:? ?|0x[0-9a-f]{6,}", "", lines[0]) if lines else ""
        return text.strip()[:160] or "no reason given"

    @property
    def is_disk_full(self) -> bool:
        """Whether the output could not grow."""
        return any("No space left on device" in line for line in self.last)


@lru_cache(maxsize=1)
def ffmpeg_binary() -> str:
    """The system's ffmpeg from 5.1 on, else the one that the ``imageio-ffmpeg`` wheel carries.

    Raises ``Internal`` where there is neither.
    """
    found = shutil.which("ffmpeg")
    if found and _is_recent(found):
        return found
    import imageio_ffmpeg

    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError:
        raise Internal("no ffmpeg on this machine") from None


def _is_recent(binary: str) -> bool:
    """Whether this ffmpeg knows ``-fps_mode`` (5.1). A version without a number is a build from source."""
    try:
        shown = subprocess.run([binary, "-version"], capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.match(rb"ffmpeg version n?(\d+)\.(\d+)", shown)
    return version is None or (int(version[1]), int(version[2])) >= (5, 1)


def input_options(demuxer: str) -> dict[str, str]:
    """Input options that keep a file from being taken for another format and from opening others."""
    return {"f": demuxer, "protocol_whitelist": "file"}


def file_argument(path: Path) -> str:
    """A path as ffmpeg takes it, whatever characters it starts with."""
    return f"file:{path.resolve()}"


def run_ffmpeg(
    arguments: Sequence[str], *, out: Path, timeout: float, on_line: Callable[[str], None] | None = None
) -> FfmpegRun:
    """Run ffmpeg with its standard output going to the file ``out``; every message line goes to ``on_line``.

    Raises ``DecodeTimeout`` after ``timeout`` seconds, and then nothing of ffmpeg is left running.
    """
    command = [
        ffmpeg_binary(),
        *("-hide_banner", "-nostdin", "-nostats", "-loglevel", "level+info"),
        *("-timelimit", str(int(timeout * (os.cpu_count() or 1)) + 1)),
        *arguments,
    ]
    with out.open("wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.PIPE, process_group=0
        )
        messages = _Messages(on_line)
        try:
            _drain(process, messages, time.monotonic() + timeout)
        finally:
            _end(process)
    return FfmpegRun(process.returncode, messages.failures, tuple(messages.last))


class _Messages:
    """Takes bytes of stderr, hands on whole lines, keeps the last few."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self.failures = 0
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LINE_LIMIT:]
        for raw in lines:
            line = raw[:_LINE_LIMIT].decode("utf-8", "replace")
            self.failures += any(mark in line for mark in _FAILURES)
            if "Parsed_showinfo" not in line:
                self.last.append(line[:300])
            if self._on_line is not None:
                self._on_line(line)


def _drain(process: subprocess.Popen[bytes], messages: _Messages, deadline: float) -> None:
    """Read stderr to its end, then wait: an unread pipe would block ffmpeg after 64 KiB."""
    pipe: IO[bytes] | None = process.stderr
    assert pipe is not None
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DecodeTimeout("decoding took longer than its time limit")
            if not selector.select(left):
                continue
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                break
            messages.feed(data)
    messages.feed(b"\n")
    try:
        process.wait(max(0.01, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise DecodeTimeout("decoding took longer than its time limit") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process and no pipe behind, however we got here."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()
