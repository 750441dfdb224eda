"""Figures of preprocessing: counts of random sizes, pixels in levels of 255, log-mel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epd.contracts.errors import EmptyMedia, MediaTooLarge
from gpu_worker.encoders.base import Encoder
from tests.parity.media import EXAMPLES, image_item, photo_item, random_sizes
from tests.parity.published import Count, Item, Published, PublishedAudios, PublishedImages
from tests.parity.row_figures import highest
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeFigures:
    """``mismatches`` of ``tried`` sizes: another grid, length or token count than the published one."""

    tried: int
    mismatches: int
    first: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelFigures:
    """``within_one``: share of ``values`` that are at most one level of 255 off; ``most`` levels off."""

    values: int
    within_one: float
    most: float


def size_figures(published: Published, encoder: Encoder, number: int) -> SizeFigures:
    """Every count of the published side against our plan."""
    counts = list(published.counts(number))
    wrong = [count for count in counts if not _agrees(encoder, count)]
    return SizeFigures(tried=len(counts), mismatches=len(wrong), first=str(wrong[0]) if wrong else "")


def pixel_figures(published: PublishedImages, encoder: Encoder, items: Iterable[Item]) -> PixelFigures:
    """Values of images, both sides brought back to levels."""
    values, near, most = 0, 0, [0.0]
    for item in items:
        apart = published.own_pixels(encoder, item) - published.pixels(item)
        levels = (apart.float() * published.spread()).abs()
        values += levels.numel()
        near += int((levels <= 1.001).sum())  # a normalised value is a float: a level comes back as 1 + 1e-6
        most.append(float(levels.max()))
    return PixelFigures(values=values, within_one=near / values, most=highest(most))


def mel_difference(published: PublishedAudios, encoder: Encoder) -> float:
    """The largest absolute difference of any value of any clip, by its first window."""
    worst = [0.0]
    for item in published.items():
        own, wanted = published.own_mel(encoder, item), published.mel(item)
        assert own.shape == wanted.shape, (own.shape, wanted.shape)
        worst.append(float((own - wanted).abs().max()))
    return highest(worst)


def shown_images(number: int) -> list[Item]:
    """The example photos, and random images of so many random sizes up to 1500."""
    sizes = random_sizes(number, seed=17, longs=(60, 300, 700, 1500))
    photos = [photo_item(path.name) for path in sorted(EXAMPLES.glob("*.jpg"))]
    return [*photos, *(image_item(*size) for size in sizes)]


def _agrees(encoder: Encoder, count: Count) -> bool:
    try:
        plan = encoder.plan(count.raw, NO_OPTIONS)
    except (EmptyMedia, MediaTooLarge):
        return count.tokens == 0
    facts = plan.facts
    return (plan.tokens, facts.grid_thw, facts.audio_feature_lengths) == (
        count.tokens,
        count.grid,
        count.lengths,
    )
