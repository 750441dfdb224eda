"""Reads from ffmpeg's ``showinfo`` messages which frames were decoded, when they show and how large."""

from __future__ import annotations

import re
from fractions import Fraction

from epd.contracts.errors import MediaTooLarge, UnsupportedMedia
from workers.sampling import Timeline

_TIME_BASE = re.compile(r"config in time_base: (\d+)/(\d+)")
_FRAME = re.compile(r" n: *(\d+) pts: *(-?\d+|NOPTS) .*? s:(\d+)x(\d+) ")


class FrameLog:
    """Takes message lines of one run. ``size`` is (width, height) after rotation; ``None`` before a frame."""

    def __init__(self, *, most: int) -> None:
        self.size: tuple[int, int] | None = None
        self._most = most
        self._stamps: list[int | None] = []
        self._unit = Fraction(1)

    def read(self, line: str) -> None:
        """Take one line; raises ``MediaTooLarge`` (too many frames), ``UnsupportedMedia`` (a new size)."""
        if "Parsed_showinfo" not in line:
            return
        if base := _TIME_BASE.search(line):
            self._unit = Fraction(int(base[1]), max(1, int(base[2])))
        elif frame := _FRAME.search(line):
            self._take(frame)

    def timeline(self, header_rate: float | None) -> Timeline:
        """The times of all decoded frames, from the first; even ones where the file has none."""
        stamps = [stamp for stamp in self._stamps if stamp is not None]
        if len(stamps) < len(self._stamps):
            rate = header_rate or 25.0
            return Timeline(tuple(index / rate for index in range(len(self._stamps))), rate)
        times = tuple(float((stamp - stamps[0]) * self._unit) for stamp in stamps)
        return Timeline(times, header_rate)

    def _take(self, frame: re.Match[str]) -> None:
        size = (int(frame[3]), int(frame[4]))
        # ffmpeg starts its filters and their count anew when the frame size changes.
        if self.size not in {None, size} or int(frame[1]) != len(self._stamps):
            raise UnsupportedMedia("the frame size changes within the video")
        if len(self._stamps) >= self._most:
            raise MediaTooLarge(f"the video has more than {self._most} frames")
        self.size = size
        self._stamps.append(None if frame[2] == "NOPTS" else int(frame[2]))
