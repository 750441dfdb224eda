"""Batches of exactly so many units, for every family: what the edges of buckets are tried with."""

from __future__ import annotations

import math

import torch

from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.encoders.base import Encoder, GraphForm, Inputs
from tests.unit.encoders.tiny_checkpoints import random_image, raw_audio, raw_image

FAMILIES = (
    "whisper", "qwen2_audio", "qwen2_5_omni_audio", "dinov2", "clip", "siglip", "qwen2_vl", "qwen2_5_vl",
    "qwen3_vl",
)  # fmt: skip

#: Patches of a merge cell of the Qwen-VL families, and pixels of a cell's side.
_CELL = 4
_SIDES = {"qwen2_vl": 28, "qwen2_5_vl": 28, "qwen3_vl": 32}
#: Samples of a row of speech at 16 kHz: two feature frames of 10 ms.
_ROW = 320
#: A grid of any size is taken as it is: no image is enlarged.
_ANY_SIZE = ItemOptions(min_pixels=1)


def smallest_step(encoder: Encoder, form: GraphForm) -> int:
    """The fewest units by which batches can differ."""
    return _CELL if form.units == "patches" else 1


def batch_of(encoder: Encoder, units: int, *, seed: int = 0, seconds: int = 1) -> Inputs:
    """Random media of so many images, windows, patches or rows of speech; ``seconds`` is of one window."""
    family = encoder.card.family
    if family == "whisper":
        return _packed(encoder, [raw_audio(16_000 * seconds)] * units, seed)
    if family in {"qwen2_audio", "qwen2_5_omni_audio"}:
        return _packed(encoder, [raw_audio(_ROW * units)], seed)
    if family in _SIDES:
        side = _SIDES[family]
        grids = cells_as_grids(units // _CELL)
        return _packed(encoder, [raw_image(rows * side, columns * side) for rows, columns in grids], seed)
    return _packed(encoder, [raw_image(30 + index, 40) for index in range(units)], seed)


def same_item_in_crowds(encoder: Encoder) -> tuple[int, list[Inputs]]:
    """Batches of as many units, all with the same first item and other items next to it, and its rows."""
    family = encoder.card.family
    if family in {"qwen2_audio", "qwen2_5_omni_audio"}:
        crowds = [[200, 150, 90], [200, 40, 200], [200, 240]]
        raws: list[list[RawMedia]] = [[raw_audio(_ROW * rows) for rows in crowd] for crowd in crowds]
    elif family == "whisper":
        raws = [[raw_audio(16_000 * seconds) for seconds in crowd] for crowd in ([3, 3, 3], [3, 1, 30])]
    elif family in _SIDES:
        grids = [[(6, 6), (10, 10)], [(6, 6), (5, 10), (10, 5)], [(6, 6), (4, 25)]]
        side = _SIDES[family]
        raws = [[raw_image(rows * side, columns * side) for rows, columns in crowd] for crowd in grids]
    else:
        sizes = [[(30, 40), (30, 40), (30, 40)], [(30, 40), (200, 90), (7, 9)]]
        raws = [[raw_image(*size) for size in crowd] for crowd in sizes]
    own = encoder.plan(raws[0][0], _options(encoder)).tokens
    return own, [_packed(encoder, crowd, 0, others=100 * index) for index, crowd in enumerate(raws)]


def cells_as_grids(cells: int) -> list[tuple[int, int]]:
    """Grids (rows, columns) of merge cells that have so many together: almost a square, and its rest."""
    rows = math.isqrt(cells)
    columns, rest = divmod(cells, rows)
    return [(rows, columns), (1, rest)] if rest else [(rows, columns)]


def _packed(encoder: Encoder, raws: list[RawMedia], seed: int, *, others: int = 0) -> Inputs:
    """A batch whose first item is of ``seed`` alone, and the rest of ``others`` too."""
    seeds = [seed, *(seed + others + index for index in range(1, len(raws)))]
    tensors = [random_media(raw, one).to(encoder.card.device) for raw, one in zip(raws, seeds, strict=True)]
    return encoder.preprocess(tensors, [encoder.plan(raw, _options(encoder)) for raw in raws])


def _options(encoder: Encoder) -> ItemOptions:
    return _ANY_SIZE if "min_pixels" in encoder.card.options else ItemOptions()


def random_media(raw: RawMedia, seed: int) -> torch.Tensor:
    """Random pixels or noise of this size, the same for the same seed."""
    if raw.kind == "audio":
        return torch.randn(raw.samples, generator=torch.Generator().manual_seed(seed)) * 0.1
    frames = raw.frames if raw.kind == "frames" else None
    return random_image(raw.height, raw.width, frames=frames, seed=seed)
