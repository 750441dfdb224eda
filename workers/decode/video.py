"""Decode sampled frames of a video with ffmpeg: upright uint8 RGB at the video's own size.

Usually one pass is enough: packets give the frame times beforehand, so ffmpeg outputs only the chosen frames.
There are three reasons for another pass:

* The decoded frames are not those of the packets (hidden frames, broken starts) and ask for another choice.
  Every pass therefore counts the frames that the decoder outputs.
* The frames are larger than the header says. Space is reserved for the header's frame size before a pass, and
  a pass cannot write more than that, so the next one reserves more.
* The decoder reported errors. The next pass leaves out faulty frames: concealed errors differ from run to
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
from workers.decode.sampling import FrameLog, SampledFrames, Timeline, choose_frames, report_filters
from workers.decode.sniff import Kind
from workers.limits import DecodeLimits, write_all

#: Most passes over one video.
_PASSES = 4
#: Most terms in a leaf of ``pick_expression``.
_LEAF = 8
_SLACK = 0.5  # seconds by which a header's duration may be off without anything missing


def sample_video(
    path: Path, *, sniffed: Kind, rules: VideoRules, limits: DecodeLimits, out: Path
) -> SampledFrames:
    """Write the frames that ``rules`` choose to ``out``, as uint8 RGB [frames, height, width, 3].

    Raises:
        UnsupportedMedia: there is no video stream, or the frame size changes within it.
        EmptyMedia: the stream holds no frame.
        CorruptMedia: it cannot be decoded, or differently each time.
        MediaTooLarge: more seconds, frames, pixels a frame or bytes of sampled frames than ``limits`` allow.
        DecodeTimeout: all passes together took longer than ``limits.timeout``.
        BlobSpaceFull: space for the frames cannot be reserved.
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
    """One video to decode. ``frame_bytes`` is the assumed size of one raw frame."""

    path: Path
    sniffed: Kind
    track: VideoTrack
    limits: DecodeLimits
    out: Path
    frame_bytes: int

    def decode(self, chosen: tuple[int, ...], deadline: float, *, steady: bool) -> tuple[FfmpegRun, FrameLog]:
        """One pass. With ``steady``, frames with errors are left out: how a decoder conceals them varies."""
        nbytes = self._reserve(len(chosen))
        log = FrameLog(most=self.limits.source_frames, unit=self.track.unit)
        with report_to(log.read_message, log.read_report) as report:
            filters = report_filters(report.fd, pick_expression(tuple(sorted(set(chosen)))))
            run = run_ffmpeg(
                self.arguments(filters, nbytes, steady=steady),
                out=self.out,
                timeout=deadline - time.monotonic(),
                report=report,
            )
        if run.is_disk_full:
            raise BlobSpaceFull("no space left for media in the blob directory")
        return run, log

    def _reserve(self, count: int) -> int:
        """Reserve space for this many frames; returns its bytes."""
        nbytes = self.frame_bytes * count
        if nbytes > self.limits.frame_bytes:
            raise MediaTooLarge(
                f"{count} frames of {self.track.width}x{self.track.height} are more than "
                f"{self.limits.frame_bytes} bytes; ask for fewer frames"
            )
        self.limits.hold(nbytes)
        return nbytes

    def arguments(self, filters: str, nbytes: int, *, steady: bool) -> list[str]:
        """The ffmpeg arguments: one stream through ``filters`` to raw RGB, with no frame added or dropped.

        Output beyond ``nbytes`` is cut, so that no file can fill the disk.
        """
        # The decoder also refuses a frame that is larger than the header says.
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
            fs=nbytes + 1,
        )
        arguments: list[str] = output.get_args()
        return arguments


def _checked_track(facts: MediaFacts, limits: DecodeLimits) -> VideoTrack:
    """The video track, after all checks that need no decoding."""
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
    """An ffmpeg expression that is true for these ascending frame numbers: a search tree with small leaves.

    A plain sum of hundreds of terms is too deep for ffmpeg's parser, and slow for every frame.
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
    """Check the file's size, then repeat each frame that was chosen more than once."""
    once = sorted(set(chosen))
    if out.stat().st_size != len(once) * frame_bytes:
        raise CorruptMedia("ffmpeg returned another number of frames than it was asked for")
    if len(once) == len(chosen):
        return
    place = {index: number for number, index in enumerate(once)}
    with out.open("r+b") as file:
        # From the end, so that each frame is read before it is overwritten.
        for number in range(len(chosen) - 1, -1, -1):
            file.seek(place[chosen[number]] * frame_bytes)
            frame = file.read(frame_bytes)
            file.seek(number * frame_bytes)
            write_all(file, frame)
