"""Decode sound with ffmpeg: float32 mono at the encoder's rate, the mean of the channels.

Every channel counts 1/n whatever the layout. ffmpeg's own down-mix weighs channels by layout and differs
between sample formats; the mean is one rule, and cannot leave the range that the channels had.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ffmpeg

from epd.contracts.errors import BlobSpaceFull, CorruptMedia, EmptyMedia, MediaTooLarge, NoAudioTrack
from workers.ffmpeg import FfmpegRun, file_argument, input_options, run_ffmpeg
from workers.limits import DecodeLimits
from workers.probe import AudioTrack, probe
from workers.sniff import Sniffed

_BYTES = 4  # of one float32 sample
_SLACK = 0.05  # seconds that codecs may pad or trim


@dataclass(frozen=True)
class DecodedAudio:
    """What was written: float32 [samples] at the wanted rate. ``partial``: the file broke off."""

    samples: int
    partial: bool


def decode_audio(
    path: Path, *, sniffed: Sniffed, sample_rate: int, limits: DecodeLimits, out: Path
) -> DecodedAudio:
    """Write the first audio track to ``out``.

    Raises ``NoAudioTrack``, ``EmptyMedia`` without a sample, ``CorruptMedia``, ``MediaTooLarge`` by decoded
    samples (headers of streamed files lie), ``DecodeTimeout`` and ``BlobSpaceFull``.
    """
    track = probe(path, sniffed=sniffed, limits=limits).audio
    if track is None:
        raise NoAudioTrack("the file has no audio track")
    run = run_ffmpeg(
        audio_arguments(path, sniffed, track, sample_rate, limits), out=out, timeout=limits.timeout
    )
    samples = out.stat().st_size // _BYTES
    _check(run, samples, sample_rate, limits)
    return DecodedAudio(samples, _is_partial(run, samples / sample_rate, track))


def audio_arguments(
    path: Path, sniffed: Sniffed, track: AudioTrack, sample_rate: int, limits: DecodeLimits
) -> list[str]:
    """The ffmpeg arguments: float first, then the mean, then the rate, so nothing is rounded or clipped."""
    share = 1.0 / track.channels
    mean = "+".join(f"{share:.9f}*c{channel}" for channel in range(track.channels))
    output = ffmpeg.input(file_argument(path), **input_options(sniffed.format)).output(
        "pipe:1",
        map=f"0:{track.index}",
        af=f"aformat=sample_fmts=fltp,pan=mono|c0={mean},aresample={sample_rate}",
        f="f32le",
        # One second over the limit is enough to tell that there is more.
        t=limits.audio_seconds + 1,
    )
    arguments: list[str] = output.get_args()
    return arguments


def _check(run: FfmpegRun, samples: int, sample_rate: int, limits: DecodeLimits) -> None:
    if run.is_disk_full:
        raise BlobSpaceFull("no room left for media in the blob directory")
    if samples == 0 and run.is_faulty:
        raise CorruptMedia(f"the sound cannot be decoded: {run.reason}")
    if samples == 0:
        raise EmptyMedia("the audio track holds no samples")
    if samples > limits.audio_seconds * sample_rate:
        raise MediaTooLarge(f"the sound is longer than {limits.audio_seconds:g} s")


def _is_partial(run: FfmpegRun, seconds: float, track: AudioTrack) -> bool:
    """Whether the end is missing: errors, and less sound than the header promised, if it promised any."""
    if not run.is_faulty:
        return False
    return track.duration is None or seconds < track.duration - _SLACK
