"""Decode sampled frames of a video with ffmpeg: upright uint8 RGB at the video's own size.

Packets tell the frame times beforehand, so that one decode pass picks the frames and only those leave
ffmpeg. Packets and frames need not agree (hidden frames, broken starts), so the frames that the decoder
really showed are counted in the same pass; where they ask for other frames, a second pass takes those.
"""

from __future__ import annotations

import os
from pathlib import Path

import ffmpeg

from epd.contracts.card import VideoRules
from epd.contracts.errors import BlobSpaceFull, CorruptMedia, EmptyMedia, MediaTooLarge, UnsupportedMedia
from workers.ffmpeg import FfmpegRun, file_argument, input_options, run_ffmpeg
from workers.framelog import FrameLog
from workers.frames import SampledFrames
from workers.limits import DecodeLimits
from workers.probe import MediaFacts, VideoTrack, probe
from workers.sampling import Timeline, choose_frames
from workers.sniff import Sniffed

_PASSES = 2
_SLACK = 0.5  # seconds by which a header's duration may be off without anything missing


def sample_video(
    path: Path, *, sniffed: Sniffed, rules: VideoRules, limits: DecodeLimits, out: Path
) -> SampledFrames:
    """Write the frames that ``rules`` take to ``out``.

    Raises ``UnsupportedMedia`` without a video stream, ``EmptyMedia`` without a frame, ``CorruptMedia``,
    ``MediaTooLarge`` (seconds, frames, bytes of all sampled frames), ``DecodeTimeout``, ``BlobSpaceFull``.
    """
    facts = probe(path, sniffed=sniffed, limits=limits, with_timeline=True)
    track = _checked_track(facts, limits)
    timeline = facts.timeline
    chosen = choose_frames(timeline, rules)
    for _ in range(_PASSES):
        _check_bytes(track, len(chosen), limits)
        run, log = _decode(path, sniffed, track, chosen, limits, out)
        timeline = log.timeline(track.rate)
        if log.size is None or not timeline.times:
            raise CorruptMedia(f"no frame of the video can be decoded: {run.reason}")
        if (again := choose_frames(timeline, rules)) == chosen:
            return _result(run, log.size, track, timeline, chosen, out)
        chosen = again
    raise CorruptMedia("the video decodes differently each time")


def _checked_track(facts: MediaFacts, limits: DecodeLimits) -> VideoTrack:
    """The video track, after every check that needs no decoding."""
    if facts.video is None:
        raise UnsupportedMedia("the file has no video stream")
    seconds = max(facts.video.duration or 0.0, facts.timeline.span)
    if seconds > limits.video_seconds:
        raise MediaTooLarge(f"{seconds:.0f} s of video are more than {limits.video_seconds:g} s")
    if not facts.timeline.times:
        raise EmptyMedia("the video holds no frames")
    if facts.video.width * facts.video.height > limits.image_pixels:
        raise MediaTooLarge(f"a frame has more than {limits.image_pixels} pixels")
    return facts.video


def _check_bytes(track: VideoTrack, count: int, limits: DecodeLimits) -> None:
    if track.width * track.height * 3 * count > limits.frame_bytes:
        raise MediaTooLarge(
            f"{count} frames of {track.width}x{track.height} are more than {limits.frame_bytes} bytes; "
            "ask for fewer frames"
        )


def _decode(
    path: Path, sniffed: Sniffed, track: VideoTrack, chosen: tuple[int, ...], limits: DecodeLimits, out: Path
) -> tuple[FfmpegRun, FrameLog]:
    log = FrameLog(most=limits.source_frames)
    arguments = video_arguments(path, sniffed, track, chosen)
    run = run_ffmpeg(arguments, out=out, timeout=limits.timeout, on_line=log.read)
    if run.is_disk_full:
        raise BlobSpaceFull("no room left for media in the blob directory")
    return run, log


def video_arguments(path: Path, sniffed: Sniffed, track: VideoTrack, chosen: tuple[int, ...]) -> list[str]:
    """The ffmpeg arguments: tell of every decoded frame, let the chosen ones through once each."""
    picks = "+".join(f"eq(n,{index})" for index in sorted(set(chosen)))
    output = ffmpeg.input(file_argument(path), **input_options(sniffed.format)).output(
        "pipe:1",
        map=f"0:{track.index}",
        vf=f"showinfo=checksum=0,select='{picks}'",
        fps_mode="passthrough",
        f="rawvideo",
        pix_fmt="rgb24",
    )
    arguments: list[str] = output.get_args()
    return arguments


def _result(
    run: FfmpegRun,
    size: tuple[int, int],
    track: VideoTrack,
    timeline: Timeline,
    chosen: tuple[int, ...],
    out: Path,
) -> SampledFrames:
    _repeat_frames(out, chosen, size[0] * size[1] * 3)
    missing = (track.duration or 0.0) - timeline.duration
    return SampledFrames(
        frames=len(chosen),
        size=size,
        original_size=(track.width, track.height),
        timestamps=tuple(timeline.times[index] for index in chosen),
        duration=timeline.duration,
        source_frames=len(timeline.times),
        partial=bool(run.code or run.failures) and missing > _SLACK,
    )


def _repeat_frames(out: Path, chosen: tuple[int, ...], frame_bytes: int) -> None:
    """Check the file's size, then write a frame that was chosen more than once as often as it was chosen."""
    once = sorted(set(chosen))
    if out.stat().st_size != len(once) * frame_bytes:
        raise CorruptMedia("ffmpeg returned another number of frames than it was asked for")
    if len(once) == len(chosen):
        return
    place = {index: number for number, index in enumerate(once)}
    whole = out.with_name(f"{out.name}.full")
    try:
        with out.open("rb") as source, whole.open("wb") as sink:
            for index in chosen:
                source.seek(place[index] * frame_bytes)
                sink.write(source.read(frame_bytes))
        os.replace(whole, out)
    finally:
        whole.unlink(missing_ok=True)
