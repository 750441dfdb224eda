"""One checkpoint on both sides, what is measured between them, and the bars that it is held to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from gpu_worker.encoders.base import Encoder
from tests.parity.preprocess_figures import (
    PixelFigures,
    SizeFigures,
    mel_difference,
    pixel_figures,
    shown_images,
    size_figures,
)
from tests.parity.published import Published, PublishedAudios, PublishedImages, encode, load_ours
from tests.parity.row_figures import (
    BucketFigures,
    bucket_figures,
    cosine,
    highest,
    lowest,
    relative_error,
    row_cosine,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """What a checkpoint must reach."""

    fp32_error: float = 1e-4
    bf16_cosine: float = 0.999
    packed_difference: float = 1e-5
    pixels_within_one: float = 0.999
    pixels_most: float = 2.0
    mel_difference: float = 1e-4


BARS = Bars()


class Comparison:
    """Ours in both dtypes next to transformers' float32. Errors are relative to an item's largest value."""

    def __init__(self, published: Published) -> None:
        self.published = published

    @cached_property
    def ours(self) -> Encoder:
        """In float32."""
        return load_ours(self.published.family, self.published.folder)

    @cached_property
    def half(self) -> Encoder:
        """In bfloat16."""
        return load_ours(self.published.family, self.published.folder, "bfloat16")

    @cached_property
    def wanted(self) -> list[Tensor]:
        """Transformers' rows of every item."""
        return [self.published.rows(one) for one in self.published.items()]

    @cached_property
    def singles(self) -> list[Tensor]:
        """Our float32 rows of every item, each alone."""
        return [encode(self.ours, [one])[0] for one in self.published.items()]

    @cached_property
    def halves(self) -> list[Tensor]:
        """The same in bfloat16."""
        return [encode(self.half, [one])[0] for one in self.published.items()]

    def fp32_error(self) -> float:
        """The worst of any item."""
        pairs = zip(self.singles, self.wanted, strict=True)
        return highest(relative_error(got, wanted, self.published.parts) for got, wanted in pairs)

    def bf16_cosine(self) -> float:
        """The lowest of any item, against transformers in float32."""
        return lowest(cosine(got, wanted) for got, wanted in zip(self.halves, self.wanted, strict=True))

    def bf16_row_cosine(self) -> float:
        """The lowest of any single row; no bar is set for it."""
        return lowest(row_cosine(got, wanted) for got, wanted in zip(self.halves, self.wanted, strict=True))

    def packed_difference(self) -> float:
        """All items in one forward against each alone: the worst of any item."""
        packed = encode(self.ours, self.published.items())
        return highest(relative_error(one, other) for one, other in zip(packed, self.singles, strict=True))

    def sizes(self, number: int) -> SizeFigures:
        """So many random sizes of each kind of media."""
        return size_figures(self.published, self.ours, number)

    def pixels(self, number: int) -> PixelFigures | None:
        """The example photos and so many random images, where the family takes images."""
        if not isinstance(self.published, PublishedImages):
            return None
        return pixel_figures(self.published, self.ours, shown_images(number))

    def mel_difference(self) -> float | None:
        """Log-mel of every clip, where the family takes audio."""
        if not isinstance(self.published, PublishedAudios):
            return None
        return mel_difference(self.published, self.ours)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityFigures:
    """All figures of one checkpoint."""

    fp32_error: float
    bf16_cosine: float
    bf16_row_cosine: float
    packed_difference: float
    bucket_fp32: BucketFigures
    bucket_bf16: BucketFigures
    sizes: SizeFigures
    pixels: PixelFigures | None
    mel_difference: float | None

    def missed(self, bars: Bars = BARS) -> list[str]:
        """Names of the figures that miss their bar."""
        outcomes = {
            "fp32_error": self.fp32_error <= bars.fp32_error,
            "bf16_cosine": self.bf16_cosine >= bars.bf16_cosine,
            "packed_difference": self.packed_difference <= bars.packed_difference,
            "bucket_fp32": self.bucket_fp32.equal,
            "bucket_bf16": self.bucket_bf16.equal,
            "sizes": self.sizes.mismatches == 0,
            "pixels": self.pixels is None or near_enough(self.pixels, bars),
            "mel_difference": self.mel_difference is None or self.mel_difference <= bars.mel_difference,
        }
        return [name for name, held in outcomes.items() if not held]


def near_enough(pixels: PixelFigures, bars: Bars = BARS) -> bool:
    """Whether pixels reach both of their bars."""
    return pixels.within_one >= bars.pixels_within_one and pixels.most <= bars.pixels_most


def measure(published: Published, *, sizes: int, images: int) -> ParityFigures:
    """Every figure; ``sizes`` random ones of each kind of media, ``images`` whose pixels are compared."""
    both = Comparison(published)
    return ParityFigures(
        fp32_error=both.fp32_error(),
        bf16_cosine=both.bf16_cosine(),
        bf16_row_cosine=both.bf16_row_cosine(),
        packed_difference=both.packed_difference(),
        bucket_fp32=bucket_figures(published, both.ours),
        bucket_bf16=bucket_figures(published, both.half),
        sizes=both.sizes(sizes),
        pixels=both.pixels(images),
        mel_difference=both.mel_difference(),
    )
