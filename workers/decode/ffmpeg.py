"""Run ffmpeg on one seekable file with a time limit, and read its messages while it works.

ffmpeg runs in its own process group and is killed with it. If this process is killed first, ffmpeg's own CPU
time limit ends it. It may use no protocol but ``file``, and its demuxer is named, never guessed.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from epd.contracts.errors import DecodeTimeout, Internal
from epd.processes import die_with_parent

#: Bytes of a line of output after which the rest is dropped.
_LINE_LIMIT = 4096
#: Last messages that are kept.
_KEPT_LINES = 20
#: Marks of error lines.
_FAILURES = ("[error]", "[fatal]", "[panic]")


@dataclass(frozen=True)
class FfmpegRun:
    """How a run ended. ``failures`` counts its error lines; ``last`` holds its last messages."""

    code: int
    failures: int
    last: tuple[str, ...]

    @property
    def is_faulty(self) -> bool:
        """Whether ffmpeg reported an error, even if it continued."""
        return bool(self.code or self.failures)

    @property
    def reason(self) -> str:
        """The first error line without ffmpeg's own prefix, path and addresses; safe to show."""
        if self.code < 0:
            return "the decoder crashed"
        lines = [line for line in self.last if any(mark in line for mark in _FAILURES)]
        text = re.sub(r"^(\[[^\]]*\] ?)+|file:\S+:? ?|0x[0-9a-f]{6,}", "", lines[0]) if lines else ""
        return text.strip()[:160] or "no reason given"

    @property
    def is_disk_full(self) -> bool:
        """Whether the output could not grow."""
        return any("No space left on device" in line for line in self.last)


def run_ffmpeg(
    arguments: Sequence[str], *, out: Path, timeout: float, report: Report | None = None
) -> FfmpegRun:
    """Run ffmpeg. No process of it is left, however the run ends.

    Args:
        arguments: its arguments, after those that every run has.
        out: the file that receives its standard output.
        timeout: seconds.
        report: receives its other lines.

    Raises:
        DecodeTimeout: it ran longer than ``timeout``.
    """
    command = [
        ffmpeg_binary(),
        *("-hide_banner", "-nostdin", "-nostats", "-loglevel", "level+info"),
        *("-timelimit", str(max(1, int(timeout * (os.cpu_count() or 1)) + 1))),
        *arguments,
    ]
    messages = _Messages(report)
    readers: dict[int, Callable[[bytes], None]] = {}
    with out.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=die_with_parent,  # noqa: PLW1509  only calls prctl
            pass_fds=(report.fd,) if report else (),
        )
    try:
        assert process.stderr is not None
        readers[process.stderr.fileno()] = messages.feed
        if report is not None:
            readers[report.reading_end()] = Lines(report.on_report).feed
        _drain(readers, process, time.monotonic() + timeout)
    finally:
        _end(process)
    messages.feed(b"\n")
    return FfmpegRun(process.returncode, messages.failures, tuple(messages.last))


def input_options(demuxer: str) -> dict[str, str]:
    """Input options with which ffmpeg reads a file as this format only and opens no other file."""
    return {"f": demuxer, "protocol_whitelist": "file"}


def file_argument(path: Path) -> str:
    """A path as an argument of ffmpeg, whatever characters it starts with."""
    return f"file:{path.resolve()}"


@lru_cache(maxsize=1)
def ffmpeg_binary() -> str:
    """Path of the system's ffmpeg if it is 5.1 or newer, else of the one in the ``imageio-ffmpeg`` wheel.

    Raises:
        Internal: there is neither.
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
    """Whether this ffmpeg has ``-fps_mode`` (5.1). A version without a number is a build from source."""
    try:
        shown = subprocess.run([binary, "-version"], capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.match(rb"ffmpeg version n?(\d+)\.(\d+)", shown)
    return version is None or (int(version[1]), int(version[2])) >= (5, 1)


class _Messages:
    """The lines of stderr: counts failures, keeps the last lines and passes all to the report."""

    def __init__(self, report: Report | None) -> None:
        self.failures = 0
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._report = report
        self.feed = Lines(self._take).feed

    def _take(self, line: str) -> None:
        self.failures += any(mark in line for mark in _FAILURES)
        if "Parsed_showinfo" not in line:
            self.last.append(line[:300])
        if self._report is not None:
            self._report.on_message(line)


class Lines:
    """Splits bytes into lines of at most ``_LINE_LIMIT`` bytes."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the bytes of one read."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LINE_LIMIT]
        for line in lines:
            self._on_line(line[:_LINE_LIMIT].decode("utf-8", "replace"))


@contextlib.contextmanager
def report_to(on_message: Callable[[str], None], on_report: Callable[[str], None]) -> Iterator[Report]:
    """A pipe to which the filters of one run write lines. Both ends are closed after the block."""
    reading, writing = os.pipe()
    report = Report(writing, reading, on_message, on_report)
    try:
        yield report
    finally:
        report.close_writing()
        os.close(reading)


class Report:
    """Receives the lines of a run: the messages on stderr, and what its filters write to ``fd``."""

    def __init__(
        self, fd: int, reading: int, on_message: Callable[[str], None], on_report: Callable[[str], None]
    ) -> None:
        self.fd = fd
        self.on_message = on_message
        self.on_report = on_report
        self._reading = reading
        self._is_open = True

    def reading_end(self) -> int:
        """The reading end, once ffmpeg has the writing end: it only ends when our copy of that is closed."""
        self.close_writing()
        return self._reading

    def close_writing(self) -> None:
        """Close our copy of the writing end. Can be called more than once."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)


def _drain(
    readers: dict[int, Callable[[bytes], None]], process: subprocess.Popen[bytes], deadline: float
) -> None:
    """Read every pipe to its end, then wait: an unread pipe would block ffmpeg after 64 KiB."""
    with selectors.DefaultSelector() as selector:
        for fd in readers:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise _too_slow()
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                if data:
                    readers[key.fd](data)
                else:
                    selector.unregister(key.fd)
    try:
        process.wait(max(0.01, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise _too_slow() from None


def _too_slow() -> DecodeTimeout:
    return DecodeTimeout("decoding took longer than its time limit")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs, and close the pipe."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()
