"""Pipes on which ffmpeg's filters report, and the reading of bytes line by line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

_LINE_LIMIT = 4096


@contextlib.contextmanager
def report_to(on_message: Callable[[str], None], on_report: Callable[[str], None]) -> Iterator[Report]:
    """A pipe on which filters of one run can write lines; both ends are closed in the end."""
    reading, writing = os.pipe()
    report = Report(writing, reading, on_message, on_report)
    try:
        yield report
    finally:
        report.close_writing()
        os.close(reading)


class Report:
    """Where a run's lines go: messages of stderr, and what filters write to ``fd``."""

    def __init__(
        self, fd: int, reading: int, on_message: Callable[[str], None], on_report: Callable[[str], None]
    ) -> None:
        self.fd = fd
        self.on_message = on_message
        self.on_report = on_report
        self._reading = reading
        self._is_open = True

    def reading_end(self) -> int:
        """The end to read, once ffmpeg holds the other one: ours must be closed for it ever to end."""
        self.close_writing()
        return self._reading

    def close_writing(self) -> None:
        """Close our copy of the writing end, once."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)


class Lines:
    """Takes bytes, hands on whole lines of bounded length."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what one read brought."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LINE_LIMIT]
        for line in lines:
            self._on_line(line[:_LINE_LIMIT].decode("utf-8", "replace"))
