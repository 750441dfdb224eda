"""Decode audio with ffmpeg: float32 mono at the encoder's rate, the mean of the channels.

Each of n channels counts 1/n, whatever the layout. ffmpeg's own down-mix weighs channels by layout and
differs between sample formats; the mean is one rule, and stays within the range of the channels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import ffmpeg

from epd.contracts.errors import BlobSpaceFull, CorruptMedia, EmptyMedia, MediaTooLarge, NoAudioTrack
from workers.decode.ffmpeg import FfmpegRun, file_argument, input_options, run_ffmpeg
from workers.decode.probe import AudioTrack, probe
from workers.decode.sniff import Kind
from workers.limits import DecodeLimits

_BYTES = 4  # of one float32 sample
_SLACK = 0.05  # seconds by which codecs may pad or trim

#: Space is reserved for the header's duration times ``_MARGIN`` plus ``_MARGIN_SECONDS``.
_MARGIN, _MARGIN_SECONDS = 1.1, 5.0
#: Fewest bytes of a second of audio (16 kbit/s), for files whose header states no duration.
_LEAST_RATE = 2000


@dataclass(frozen=True)
class DecodedAudio:
    """What was written: float32 [samples] at the wanted rate. ``partial``: the end of the file is missing."""

    samples: int
    partial: bool


def decode_audio(
    path: Path, *, sniffed: Kind, sample_rate: int, limits: DecodeLimits, out: Path
) -> DecodedAudio:
    """Write the first audio track to ``out``, as float32 [samples] at ``sample_rate`` Hz.

    Space is reserved for what the header promises. A file with more is decoded again, with space for all that
    the limit allows.

    Raises:
        NoAudioTrack: the file has no audio track.
        EmptyMedia: the track holds no sample.
        CorruptMedia: the track cannot be decoded.
        MediaTooLarge: it is longer than ``limits.audio_seconds``, counted in decoded samples because headers
            of streamed files may be wrong.
        DecodeTimeout: decoding took longer than ``limits.timeout``.
        BlobSpaceFull: space for the samples cannot be reserved.
    """
    deadline = time.monotonic() + limits.timeout
    track = probe(path, sniffed=sniffed, limits=limits).audio
    if track is None:
        raise NoAudioTrack("the file has no audio track")
    # One second over the limit is enough to see that there is more.
    most = limits.audio_seconds + 1
    for seconds in dict.fromkeys((min(_promised_seconds(path, track), most), most)):
        limits.hold(int(seconds * sample_rate) * _BYTES)
        run = run_ffmpeg(
            audio_arguments(path, sniffed, track, sample_rate, seconds),
            out=out,
            timeout=deadline - time.monotonic(),
        )
        samples = out.stat().st_size // _BYTES
        if samples < int((seconds - _SLACK) * sample_rate):
            break
    _check(run, samples, sample_rate, limits)
    return DecodedAudio(samples, _is_partial(run, samples / sample_rate, track))


def _promised_seconds(path: Path, track: AudioTrack) -> float:
    """Seconds that the audio takes at most, if the header is right."""
    if track.duration is None:
        return path.stat().st_size / _LEAST_RATE + _MARGIN_SECONDS
    return track.duration * _MARGIN + _MARGIN_SECONDS


def audio_arguments(
    path: Path, sniffed: Kind, track: AudioTrack, sample_rate: int, seconds: float
) -> list[str]:
    """The ffmpeg arguments: to float, then the mean, then the rate, so that nothing is rounded or clipped."""
    share = 1.0 / track.channels
    mean = "+".join(f"{share:.9f}*c{channel}" for channel in range(track.channels))
    output = ffmpeg.input(file_argument(path), **input_options(sniffed.format)).output(
        "pipe:1",
        map=f"0:{track.index}",
        af=f"aformat=sample_fmts=fltp,pan=mono|c0={mean},aresample={sample_rate}",
        f="f32le",
        t=seconds,
    )
    arguments: list[str] = output.get_args()
    return arguments


def _check(run: FfmpegRun, samples: int, sample_rate: int, limits: DecodeLimits) -> None:
    if run.is_disk_full:
        raise BlobSpaceFull("no space left for media in the blob directory")
    if samples == 0 and run.is_faulty:
        raise CorruptMedia(f"the audio cannot be decoded: {run.reason}")
    if samples == 0:
        raise EmptyMedia("the audio track holds no samples")
    if samples > limits.audio_seconds * sample_rate:
        raise MediaTooLarge(f"the audio is longer than {limits.audio_seconds:g} s")


def _is_partial(run: FfmpegRun, seconds: float, track: AudioTrack) -> bool:
    """Whether the end is missing: there were errors, and less audio than the header promised, if it did."""
    if not run.is_faulty:
        return False
    return track.duration is None or seconds < track.duration - _SLACK
