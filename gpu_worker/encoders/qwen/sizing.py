"""To what size the Qwen-VL families resize an image or the frames of a video. Pure, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from epd.contracts.errors import InvalidRequest
from epd.contracts.media import ItemOptions, RawFrames, RawImage
from gpu_worker.preprocess.fit import smart_frame_size, smart_size

#: Most rows of one video: 90 % of a context of 128 000 tokens, from qwen-vl-utils.
CONTEXT_ROWS = 115_200


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelBounds:
    """Least and most pixels (height times width) after resizing."""

    least: int
    most: int

    def narrowed(self, options: ItemOptions, *, ceiling: int) -> PixelBounds:
        """The item's own bounds, else these. Raises ``InvalidRequest`` for bounds that cannot hold."""
        low, high = options.min_pixels or self.least, options.max_pixels or self.most
        if not low <= high <= ceiling:
            raise InvalidRequest(f"min_pixels {low} <= max_pixels {high} <= {ceiling} does not hold")
        return PixelBounds(least=low, most=high)


class SizeRule(Protocol):
    """The (height, width) in pixels that an item is resized to."""

    def size(self, raw: RawImage | RawFrames, options: ItemOptions) -> tuple[int, int]:
        """Raises ``InvalidRequest`` for bounds that cannot hold, ``MediaTooLarge`` above ratio 200."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameShareRule:
    """Qwen2-VL and 2.5: each frame is sized as an image, within its share of the rows of one video.

    ``image`` and ``frame`` bound one image or frame; ``factor`` is the side of a merge cell in pixels;
    ``temporal`` is the frames in one time step of the grid. Source of the share: ``fetch_video`` of
    qwen-vl-utils 0.0.14.
    """

    image: PixelBounds
    frame: PixelBounds
    factor: int
    temporal: int

    def size(self, raw: RawImage | RawFrames, options: ItemOptions) -> tuple[int, int]:
        """(height, width) of the image, or of each frame."""
        rule = self.frame if isinstance(raw, RawFrames) else self.image
        bounds = rule.narrowed(options, ceiling=self.image.most)
        most = bounds.most
        if isinstance(raw, RawFrames):
            share = CONTEXT_ROWS * self.factor**2 * self.temporal // raw.frames
            most = max(min(most, share), int(bounds.least * 1.05))
        return smart_size(raw.height, raw.width, factor=self.factor, min_pixels=bounds.least, max_pixels=most)


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeRule:
    """Qwen3-VL: ``volume`` bounds the pixels of all sampled frames of a video together.

    An item's own ``min_pixels`` and ``max_pixels`` bound each frame, as in every family, and only narrow the
    volume. Source: ``resize`` of transformers' Qwen3-VL video processor, without ``cap_pixels_per_frame``,
    which is off by default.
    """

    image: PixelBounds
    volume: PixelBounds
    factor: int
    temporal: int

    def size(self, raw: RawImage | RawFrames, options: ItemOptions) -> tuple[int, int]:
        """(height, width) of the image, or of each frame."""
        if not isinstance(raw, RawFrames):
            bounds = self.image.narrowed(options, ceiling=self.image.most)
            return smart_size(
                raw.height, raw.width, factor=self.factor, min_pixels=bounds.least, max_pixels=bounds.most
            )
        frames = max(raw.frames, self.temporal)  # a single frame is doubled
        bounds = self._narrowed(frames, options)
        return smart_frame_size(
            raw.height,
            raw.width,
            frames=frames,
            temporal=self.temporal,
            factor=self.factor,
            min_pixels=bounds.least,
            max_pixels=bounds.most,
        )

    def _narrowed(self, frames: int, options: ItemOptions) -> PixelBounds:
        frame = PixelBounds(least=1, most=self.image.most).narrowed(options, ceiling=self.image.most)
        # The reference measures whole steps and scales by frames. Each bound takes the stricter of the two.
        steps = round(frames / self.temporal) * self.temporal
        least = max(self.volume.least, frame.least * max(frames, steps)) if options.min_pixels else 0
        most = min(self.volume.most, frame.most * min(frames, steps)) if options.max_pixels else 0
        bounds = PixelBounds(least=least or self.volume.least, most=most or self.volume.most)
        if bounds.least > bounds.most:
            raise InvalidRequest(f"no size of {frames} frames has {bounds.least} to {bounds.most} pixels")
        return bounds
