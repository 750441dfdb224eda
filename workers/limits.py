"""Limits of the CPU work, as frozen values; the caller builds them from the settings.

Sizes are bytes, times are seconds.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from epd.contracts.errors import BlobSpaceFull, Internal
from epd.contracts.media import Modality

if TYPE_CHECKING:
    from epd.settings import Settings


#: Holds room for so many bytes of output in all; raises ``BlobSpaceFull`` or ``MediaTooLarge``.
Hold = Callable[[int], None]


def hold_nothing(nbytes: int) -> None:
    """The output's room is nobody's concern."""


@dataclass(frozen=True, kw_only=True)
class FetchLimits:
    """Bounds of one download. ``allow_hosts`` holds ``host`` or ``host:port`` that may be private.

    ``max_bytes`` bounds the body after content decoding. ``retries`` come after the first try. ``hold`` is
    told of bytes before they come.
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
    """Bounds of one decode. ``frame_bytes`` bounds the raw frames of a video together.

    ``source_frames`` bounds the frames that a video may hold, since their times are kept in memory.
    ``hold`` is told of the output's size as the header has it, before anything is decoded.
    """

    timeout: float = 120.0
    image_pixels: int = 100_000_000
    frame_bytes: int = 1 << 30
    audio_seconds: float = 3600.0
    video_seconds: float = 3600.0
    source_frames: int = 500_000
    hold: Hold = hold_nothing


def fetch_limits(settings: Settings, modality: Modality) -> FetchLimits:
    """The download bounds for media of ``modality``."""
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
    """The decode bounds."""
    return DecodeLimits(
        timeout=settings.decode_timeout,
        image_pixels=settings.max_image_pixels,
        frame_bytes=settings.max_frame_bytes,
        audio_seconds=settings.max_audio_seconds,
        video_seconds=settings.max_video_seconds,
    )


def write_all(into: BinaryIO, piece: bytes | memoryview) -> None:
    """Write and flush all of ``piece``, also to an unbuffered file.

    Raises ``BlobSpaceFull`` when the file cannot grow, ``Internal`` when it cannot be written to at all.
    """
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[into.write(rest) :]
        into.flush()
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise BlobSpaceFull("no room left for media in the blob directory") from error
        raise Internal("the blob directory cannot be written to") from error
