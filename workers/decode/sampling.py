"""Which frames of a video are sampled: a pure rule over presentation times, and reading those from ffmpeg.

The number of frames is that of ``smart_nframes`` in qwen-vl-utils 0.0.14: duration times ``fps``, bounded by
``min_frames`` and ``max_frames``, rounded down to a multiple of ``frame_multiple``, and never more than there
are. The frames are evenly spaced, from the first to the last.

At a constant rate they are the reference's ``linspace(0, total - 1, n).round()``, exact to the last bit. At a
variable rate they are evenly spaced in *time*, each the frame with the nearest presentation time: there an
index says nothing about when a frame is shown, and the encoder assumes an even spacing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from epd.contracts.embedding import VideoRules
from epd.contracts.errors import MediaTooLarge, UnsupportedMedia
from epd.contracts.media import ItemOptions

# What ffmpeg reports: the metadata filter on each frame, showinfo on the frame size and the time base.
_FRAME = re.compile(r"^frame:(\d+) *pts:(-?\d+|NOPTS)")
_SIZE = re.compile(r" s:(\d+)x(\d+) i:")
_TIME_BASE = re.compile(r"config in time_base: (\d+)/(\d+)")


@dataclass(frozen=True)
class Timeline:
    """Presentation times of all frames in seconds, ascending from 0.0; ``header_rate`` in frames a second."""

    times: tuple[float, ...]
    header_rate: float | None = None

    @property
    def span(self) -> float:
        """Seconds from the first frame to the last."""
        return self.times[-1] if self.times else 0.0

    @property
    def rate(self) -> float | None:
        """The constant rate in frames a second; None if the times are not evenly spaced."""
        if len(self.times) < 2 or self.span <= 0:
            return self.header_rate
        measured = (len(self.times) - 1) / self.span
        steps = np.arange(len(self.times)) / measured
        # Containers round times to about a millisecond; half a frame is more than rounding.
        if np.max(np.abs(np.asarray(self.times) - steps)) > 0.5 / measured:
            return None
        if self.header_rate and abs((len(self.times) - 1) / self.header_rate - self.span) < 0.1 / measured:
            return self.header_rate
        return measured

    @property
    def duration(self) -> float:
        """Seconds for which frames are shown; the last frame is taken to last as long as the median one."""
        rate = self.rate
        if rate:
            return len(self.times) / rate
        if len(self.times) < 2:
            return 0.0
        return self.span + float(np.median(np.diff(self.times)))


@dataclass(frozen=True)
class SampledFrames:
    """What was written: uint8 RGB [frames, height, width, 3].

    Attributes:
        frames: sampled frames.
        size: (width, height) in pixels, upright.
        original_size: (width, height) in pixels as coded.
        timestamps: seconds at which each sampled frame is shown.
        duration: seconds of the whole video.
        source_frames: frames of the whole video.
        partial: the end of the file is missing.
    """

    frames: int
    size: tuple[int, int]
    original_size: tuple[int, int]
    timestamps: tuple[float, ...]
    duration: float
    source_frames: int
    partial: bool = False


def effective_rules(rules: VideoRules, options: ItemOptions) -> VideoRules:
    """The encoder's rules, overridden by the item's own options."""
    given = options.model_dump(include={"fps", "min_frames", "max_frames"}, exclude_none=True)
    return rules.model_copy(update=given)


def choose_frames(timeline: Timeline, rules: VideoRules) -> tuple[int, ...]:
    """The indices of the frames to take, in ascending order; the last repeats if there are too few frames."""
    total = len(timeline.times)
    count = frame_count(total, timeline.duration, rules)
    if count >= total:
        return tuple(min(index, total - 1) for index in range(count))
    if timeline.rate is None:
        return _nearest(np.asarray(timeline.times), count)
    return _even_places(total, count)


def frame_count(total: int, duration: float, rules: VideoRules) -> int:
    """How many of ``total`` frames over ``duration`` seconds to take, as a multiple of ``frame_multiple``.

    The result is at least one multiple; with fewer frames than that, the caller repeats the last one.
    """
    unit = rules.frame_multiple
    least = -(-rules.min_frames // unit) * unit
    most = min(rules.max_frames, total) // unit * unit
    # The millionth keeps 19.999999, from a rounded duration, from losing a whole multiple.
    wanted = min(max(duration * rules.fps + 1e-6, least), most, total)
    return max(int(wanted) // unit * unit, unit)


def _even_places(total: int, count: int) -> tuple[int, ...]:
    """``torch.linspace(0, total - 1, count).round()`` in float32: computed from both ends, ties to even."""
    if count == 1:
        return (0,)
    end = np.float32(total - 1)
    step = end / np.float32(count - 1)
    index: NDArray[np.float32] = np.arange(count, dtype=np.float32)
    places = np.where(index < count // 2, step * index, end - step * (np.float32(count - 1) - index))
    return tuple(int(place) for place in np.round(places))


def _nearest(times: NDArray[np.float64], count: int) -> tuple[int, ...]:
    """For each of ``count`` evenly spaced times the index of the nearest frame; the earlier one on a tie."""
    moments = np.linspace(times[0], times[-1], count)
    after = np.clip(np.searchsorted(times, moments), 1, len(times) - 1)
    before = after - 1
    earlier = moments - times[before] <= times[after] - moments
    return tuple(int(index) for index in np.where(earlier, before, after))


def report_filters(fd: int, picks: str) -> str:
    """The filters that report every frame to ``fd``, then pass those for which ``picks`` is true."""
    report = rf"metadata=mode=add:key=e:value=1,metadata=mode=print:key=e:file=pipe\\\:{fd}"
    return f"{report},select='{picks}',showinfo=checksum=0"


class FrameLog:
    """What one run reported. ``size`` is (width, height) after rotation; None before the first frame."""

    def __init__(self, *, most: int, unit: Fraction) -> None:
        self.size: tuple[int, int] | None = None
        self._most = most
        self._unit = unit
        self._stamps: list[int | None] = []

    def read_message(self, line: str) -> None:
        """Read one line of stderr."""
        if base := _TIME_BASE.search(line):
            self._unit = Fraction(int(base[1]), max(1, int(base[2])))
        if self.size is None and (size := _SIZE.search(line)):
            self.size = (int(size[1]), int(size[2]))

    def read_report(self, line: str) -> None:
        """Read one line of the report.

        Raises:
            MediaTooLarge: the video has too many frames.
            UnsupportedMedia: the frame size changes.
        """
        frame = _FRAME.match(line)
        if frame is None:
            return
        # ffmpeg restarts its filters, and their count, when the frame size changes.
        if int(frame[1]) != len(self._stamps):
            raise UnsupportedMedia("the frame size changes within the video")
        if len(self._stamps) >= self._most:
            raise MediaTooLarge(f"the video has more than {self._most} frames")
        self._stamps.append(None if frame[2] == "NOPTS" else int(frame[2]))

    def timeline(self, header_rate: float | None) -> Timeline:
        """The times of all decoded frames, from the first; evenly spaced if the file lacks some."""
        stamps = [stamp for stamp in self._stamps if stamp is not None]
        if len(stamps) < len(self._stamps):
            rate = header_rate or 25.0
            return Timeline(tuple(index / rate for index in range(len(self._stamps))), rate)
        times = tuple(float((stamp - stamps[0]) * self._unit) for stamp in stamps)
        return Timeline(times, header_rate)
