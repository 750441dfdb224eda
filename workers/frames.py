"""The value that every reader of moving pictures returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SampledFrames:
    """What was written: uint8 RGB [frames, height, width, 3]. Sizes are (width, height), times seconds.

    ``size`` is upright, ``original_size`` as coded; ``partial`` tells that the file broke off.
    """

    frames: int
    size: tuple[int, int]
    original_size: tuple[int, int]
    timestamps: tuple[float, ...]
    duration: float
    source_frames: int
    partial: bool = False
