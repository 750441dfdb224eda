"""The tracks of a media file, read with PyAV from headers and packets without decoding."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import av
import av.error
from av.stream import Disposition

from epd.contracts.errors import CorruptMedia, MediaTooLarge
from workers.decode.ffmpeg import file_argument, input_options
from workers.decode.sampling import Timeline
from workers.decode.sniff import Kind
from workers.limits import DecodeLimits

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream


@dataclass(frozen=True)
class VideoTrack:
    """The first video stream that is not a cover image.

    Attributes:
        index: the stream's index in the file.
        width: pixels as coded, before rotation.
        height: pixels as coded, before rotation.
        rate: frames a second by the header.
        duration: seconds by the header.
        unit: seconds of one step of a time stamp.
    """

    index: int
    width: int
    height: int
    rate: float | None
    duration: float | None
    unit: Fraction


@dataclass(frozen=True)
class AudioTrack:
    """The first audio stream. ``sample_rate`` is in Hz, ``duration`` in seconds by the header."""

    index: int
    channels: int
    sample_rate: int
    duration: float | None


@dataclass(frozen=True)
class MediaFacts:
    """The tracks of a file, and the times of its video frames by its packets."""

    video: VideoTrack | None
    audio: AudioTrack | None
    timeline: Timeline


def probe(path: Path, *, sniffed: Kind, limits: DecodeLimits, with_timeline: bool = False) -> MediaFacts:
    """Read the tracks of a file and, ``with_timeline``, the time of every video frame.

    Raises:
        CorruptMedia: the file cannot be read; it may be cut off before its index.
        MediaTooLarge: it has more frames than ``limits.source_frames``.
    """
    options = input_options(sniffed.format)
    demuxer = options.pop("f")
    try:
        with av.open(
            file_argument(path),
            format=demuxer,
            options=options,
            timeout=limits.timeout,
            metadata_errors="replace",
        ) as container:
            video = next((track for track in map(_video_track, container.streams.video) if track), None)
            audio = next((track for track in map(_audio_track, container.streams.audio) if track), None)
            times = Timeline(())
            if with_timeline and video is not None:
                times = _timeline(container, video, limits.source_frames)
            return MediaFacts(video, audio, times)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise CorruptMedia("the file cannot be read; it may be incomplete") from error


def _video_track(stream: VideoStream) -> VideoTrack | None:
    if stream.disposition & Disposition.attached_pic or stream.codec_context is None:
        return None
    return VideoTrack(
        index=stream.index,
        width=stream.codec_context.width,
        height=stream.codec_context.height,
        rate=float(stream.average_rate) if stream.average_rate else None,
        duration=_seconds(stream),
        unit=stream.time_base or Fraction(1),
    )


def _audio_track(stream: AudioStream) -> AudioTrack | None:
    codec = stream.codec_context
    if codec is None or codec.sample_rate <= 0 or codec.channels <= 0:
        return None
    return AudioTrack(stream.index, codec.channels, codec.sample_rate, _seconds(stream))


def _seconds(stream: VideoStream | AudioStream) -> float | None:
    if stream.duration is None or stream.time_base is None:
        return None
    return float(stream.duration * stream.time_base)


def _timeline(container: InputContainer, track: VideoTrack, most: int) -> Timeline:
    """Packet times in presentation order, from the first; evenly spaced if some packets have none."""
    stream = container.streams[track.index]
    stamps: list[int | None] = []
    try:
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                stamps.append(packet.pts)
            if len(stamps) > most:
                raise MediaTooLarge(f"the video has more than {most} frames")
    except (av.error.FFmpegError, OSError):
        pass  # the file breaks off here; the packets before this point count
    known = sorted(stamp for stamp in stamps if stamp is not None)
    if len(known) < len(stamps) or stream.time_base is None:
        rate = track.rate or 25.0
        return Timeline(tuple(index / rate for index in range(len(stamps))), rate)
    return Timeline(tuple(float((stamp - known[0]) * stream.time_base) for stamp in known), track.rate)
