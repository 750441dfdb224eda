"""Limits of downloads and decodes, as frozen values built from the settings, and writing within them.

Sizes are in bytes and times in seconds.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from epd.contracts.errors import BlobSpaceFull, Internal
from epd.contracts.media import Modality

if TYPE_CHECKING:  # decode children need no settings
    from epd.settings import Settings

#: Reserves space for an output of this many bytes in all; raises ``BlobSpaceFull`` or ``MediaTooLarge``.
Hold = Callable[[int], None]


def hold_nothing(nbytes: int) -> None:
    """Reserve nothing, where the output has no quota."""


@dataclass(frozen=True, kw_only=True)
class FetchLimits:
    """Limits of one download.

    Attributes:
        max_bytes: size of the body after content decoding, in bytes.
        allow_hosts: ``host`` or ``host:port`` whose addresses may be private.
        connect_timeout: seconds for the name's look-up, and again for the connection.
        read_timeout: seconds without a byte.
        total_timeout: seconds for all tries and redirects together.
        retries: tries after the first one.
        max_redirects: redirects of one try.
        hold: called with the size of the body, in bytes, before that much of it is read.
    """

    max_bytes: int
    allow_hosts: tuple[str, ...] = ()
    connect_timeout: float = 5.0
    read_timeout: float = 10.0
    total_timeout: float = 60.0
    retries: int = 2
    max_redirects: int = 5
    hold: Hold = hold_nothing


@dataclass(frozen=True, kw_only=True)
class DecodeLimits:
    """Limits of one decode.

    Attributes:
        timeout: seconds for all runs of ffmpeg over one track together.
        image_pixels: pixels of an image, or of one frame of a video.
        frame_bytes: bytes of all sampled frames of a video together, as raw RGB.
        audio_seconds: length of an audio track, in seconds.
        video_seconds: length of a video, in seconds.
        source_frames: frames that a video may hold, since their times are kept in memory.
        hold: called with the size of the output that the header promises, in bytes, before anything is
            decoded.
    """

    timeout: float = 120.0
    image_pixels: int = 100_000_000
    frame_bytes: int = 1 << 30
    audio_seconds: float = 3600.0
    video_seconds: float = 3600.0
    source_frames: int = 500_000
    hold: Hold = hold_nothing


def fetch_limits(settings: Settings, modality: Modality) -> FetchLimits:
    """The limits of a download of this media type."""
    max_bytes = {
        Modality.IMAGE: settings.max_image_bytes,
        Modality.AUDIO: settings.max_audio_bytes,
        Modality.VIDEO: settings.max_video_bytes,
    }[modality]
    return FetchLimits(
        max_bytes=max_bytes,
        allow_hosts=settings.fetch_allow_hosts,
        connect_timeout=settings.fetch_connect_timeout,
        read_timeout=settings.fetch_read_timeout,
        total_timeout=settings.fetch_total_timeout,
        retries=settings.fetch_retries,
        max_redirects=settings.fetch_max_redirects,
    )


def decode_limits(settings: Settings) -> DecodeLimits:
    """The limits of a decode."""
    return DecodeLimits(
        timeout=settings.decode_timeout,
        image_pixels=settings.max_image_pixels,
        frame_bytes=settings.max_frame_bytes,
        audio_seconds=settings.max_audio_seconds,
        video_seconds=settings.max_video_seconds,
    )


def write_all(into: BinaryIO, piece: bytes | memoryview) -> None:
    """Write and flush all of ``piece``, also to an unbuffered file.

    Raises:
        BlobSpaceFull: the file cannot grow.
        Internal: the file cannot be written to at all.
    """
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[into.write(rest) :]
        into.flush()
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise BlobSpaceFull("no space left for media in the blob directory") from error
        raise Internal("the blob directory cannot be written to") from error
