"""Reads what ffmpeg tells of a video while it decodes: when every frame shows, and the frames' size.

Times come over a pipe of their own (the ``metadata`` filter): on stderr the decoder's threads write into
each other's lines. The size comes from ``showinfo`` messages, of which one whole line is enough.
"""

from __future__ import annotations

import re
from fractions import Fraction

from epd.contracts.errors import MediaTooLarge, UnsupportedMedia
from workers.sampling import Timeline

_FRAME = re.compile(r"^frame:(\d+) *pts:(-?\d+|NOPTS)")
_SIZE = re.compile(r" s:(\d+)x(\d+) i:")
_TIME_BASE = re.compile(r"config in time_base: (\d+)/(\d+)")


def telling_filters(fd: int, picks: str) -> str:
    """The filters that report every frame to ``fd``, then let those through for which ``picks`` holds."""
    report = rf"metadata=mode=add:key=e:value=1,metadata=mode=print:key=e:file=pipe\\\:{fd}"
    return f"{report},select='{picks}',showinfo=checksum=0"


class FrameLog:
    """What one run told. ``size`` is (width, height) after rotation; ``None`` before a frame came through."""

    def __init__(self, *, most: int, unit: Fraction) -> None:
        self.size: tuple[int, int] | None = None
        self._most = most
        self._unit = unit
        self._stamps: list[int | None] = []

    def read_message(self, line: str) -> None:
        """Take one line of stderr."""
        if base := _TIME_BASE.search(line):
            self._unit = Fraction(int(base[1]), max(1, int(base[2])))
        if self.size is None and (size := _SIZE.search(line)):
            self.size = (int(size[1]), int(size[2]))

    def read_report(self, line: str) -> None:
        """Take one line of the report; raises ``MediaTooLarge``, or ``UnsupportedMedia`` for a new size."""
        frame = _FRAME.match(line)
        if frame is None:
            return
        # ffmpeg starts its filters and their count anew when the frame size changes.
        if int(frame[1]) != len(self._stamps):
            raise UnsupportedMedia("the frame size changes within the video")
        if len(self._stamps) >= self._most:
            raise MediaTooLarge(f"the video has more than {self._most} frames")
        self._stamps.append(None if frame[2] == "NOPTS" else int(frame[2]))

    def timeline(self, header_rate: float | None) -> Timeline:
        """The times of all decoded frames, from the first; even ones where the file has none."""
        stamps = [stamp for stamp in self._stamps if stamp is not None]
        if len(stamps) < len(self._stamps):
            rate = header_rate or 25.0
            return Timeline(tuple(index / rate for index in range(len(self._stamps))), rate)
        times = tuple(float((stamp - stamps[0]) * self._unit) for stamp in stamps)
        return Timeline(times, header_rate)
