"""Decode sampled frames of a video with ffmpeg: upright uint8 RGB at the video's own size.

Packets tell the frame times beforehand, so that one decode pass picks the frames and only those leave
ffmpeg. Packets and frames need not agree (hidden frames, broken starts), so the frames that the decoder
really showed are counted in the same pass; where they ask for other frames, a second pass takes those.
Room for the frames is held before a pass, by the header's frame size; a pass cannot write more than that.
Where the frames turn out larger than the header says, the pass is run again with more room.
Where the decoder met errors, a further pass leaves faulty frames out: patched-up ones differ from run to
run, and equal bytes must give equal embeddings.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import ffmpeg

from epd.contracts.embedding import VideoRules
from epd.contracts.errors import BlobSpaceFull, CorruptMedia, EmptyMedia, MediaTooLarge, UnsupportedMedia
from workers.decode.ffmpeg import FfmpegRun, file_argument, input_options, report_to, run_ffmpeg
from workers.decode.probe import MediaFacts, VideoTrack, probe
from workers.decode.sampling import FrameLog, SampledFrames, Timeline, choose_frames, telling_filters
from workers.decode.sniff import Kind
from workers.limits import DecodeLimits, write_all

_PASSES = 4
_LEAF = 8
_SLACK = 0.5  # seconds by which a header's duration may be off without anything missing


def sample_video(
    path: Path, *, sniffed: Kind, rules: VideoRules, limits: DecodeLimits, out: Path
) -> SampledFrames:
    """Write the frames that ``rules`` take to ``out``.

    Raises ``UnsupportedMedia`` without a video stream, ``EmptyMedia`` without a frame, ``CorruptMedia``,
    ``MediaTooLarge`` (seconds, frames, bytes of all sampled frames), ``DecodeTimeout``, ``BlobSpaceFull``.
    """
    deadline = time.monotonic() + limits.timeout
    facts = probe(path, sniffed=sniffed, limits=limits, with_timeline=True)
    track = _checked_track(facts, limits)
    decoder = _Decoder(path, sniffed, track, limits, out, frame_bytes=track.width * track.height * 3)
    chosen, steady = choose_frames(facts.timeline, rules), False
    for _ in range(_PASSES):
        run, log = decoder.decode(chosen, deadline, steady=steady)
        timeline = log.timeline(track.rate)
        if log.size is None or not timeline.times:
            raise CorruptMedia(f"no frame of the video can be decoded: {run.reason}")
        if (frame_bytes := log.size[0] * log.size[1] * 3) > decoder.frame_bytes:
            decoder = replace(decoder, frame_bytes=frame_bytes)
            continue
        again = choose_frames(timeline, rules)
        if again == chosen and (steady or not run.is_faulty):
            return _result(run, log.size, track, timeline, chosen, out)
        chosen, steady = again, steady or run.is_faulty
    raise CorruptMedia("the video decodes differently each time")


@dataclass(frozen=True)
class _Decoder:
    """One video to decode, once or more often. ``frame_bytes``: what one frame is taken for."""

    path: Path
    sniffed: Kind
    track: VideoTrack
    limits: DecodeLimits
    out: Path
    frame_bytes: int

    def decode(self, chosen: tuple[int, ...], deadline: float, *, steady: bool) -> tuple[FfmpegRun, FrameLog]:
        """One pass. ``steady`` leaves out faulty frames: how a decoder patches those up is chance."""
        room = self._room(len(chosen))
        log = FrameLog(most=self.limits.source_frames, unit=self.track.unit)
        with report_to(log.read_message, log.read_report) as report:
            filters = telling_filters(report.fd, pick_expression(tuple(sorted(set(chosen)))))
            run = run_ffmpeg(
                self.arguments(filters, room, steady=steady),
                out=self.out,
                timeout=deadline - time.monotonic(),
                report=report,
            )
        if run.is_disk_full:
            raise BlobSpaceFull("no room left for media in the blob directory")
        return run, log

    def _room(self, count: int) -> int:
        """Bytes that so many frames take, held for them."""
        nbytes = self.frame_bytes * count
        if nbytes > self.limits.frame_bytes:
            raise MediaTooLarge(
                f"{count} frames of {self.track.width}x{self.track.height} are more than "
                f"{self.limits.frame_bytes} bytes; ask for fewer frames"
            )
        self.limits.hold(nbytes)
        return nbytes

    def arguments(self, filters: str, room: int, *, steady: bool) -> list[str]:
        """The ffmpeg arguments: one stream through ``filters`` to raw RGB, no frame added or dropped."""
        # A frame larger than its header says is refused by the decoder, too.
        options: dict[str, str | int] = {"max_pixels": self.limits.image_pixels}
        if steady:
            options |= {"threads": 1, "err_detect": "explode"}
        source = ffmpeg.input(file_argument(self.path), **input_options(self.sniffed.format), **options)
        output = source.output(
            "pipe:1",
            map=f"0:{self.track.index}",
            vf=filters,
            fps_mode="passthrough",
            f="rawvideo",
            pix_fmt="rgb24",
            # Whatever the file does, it cannot fill the disk.
            fs=room + 1,
        )
        arguments: list[str] = output.get_args()
        return arguments


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


def pick_expression(indices: tuple[int, ...]) -> str:
    """An ffmpeg expression that is true for these rising frame numbers: a search tree with small leaves.

    A plain sum of hundreds of terms is deeper than ffmpeg's parser goes, and slow for every frame.
    """
    if len(indices) <= _LEAF:
        return "+".join(f"eq(n,{index})" for index in indices)
    middle = len(indices) // 2
    left, right = pick_expression(indices[:middle]), pick_expression(indices[middle:])
    return f"if(lt(n,{indices[middle]}),{left},{right})"


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
        partial=run.is_faulty and missing > _SLACK,
    )


def _repeat_frames(out: Path, chosen: tuple[int, ...], frame_bytes: int) -> None:
    """Check the file's size, then write a frame that was chosen more than once as often as it was chosen."""
    once = sorted(set(chosen))
    if out.stat().st_size != len(once) * frame_bytes:
        raise CorruptMedia("ffmpeg returned another number of frames than it was asked for")
    if len(once) == len(chosen):
        return
    place = {index: number for number, index in enumerate(once)}
    with out.open("r+b") as file:
        # From the end, so that a frame is moved before its place is taken.
        for number in range(len(chosen) - 1, -1, -1):
            file.seek(place[chosen[number]] * frame_bytes)
            frame = file.read(frame_bytes)
            file.seek(number * frame_bytes)
            write_all(file, frame)
