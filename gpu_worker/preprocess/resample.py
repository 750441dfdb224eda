"""Filter weights of an antialiased resize along one axis, as Pillow computes them.

Source: Pillow, ``src/libImaging/Resample.c`` (``precompute_coeffs``, ``normalize_coeffs_8bpc``). The support
of the filter is multiplied by the reduction factor; its weights are normalised to 1 and rounded to integers
with 22 fractional bits. Integers of that size are exact in float64, so a matrix product gives exactly the
sums of Pillow's integer loop, in any order and on any device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor

from gpu_worker.preprocess.tensors import send

FRACTION_BITS = 22  #: of 32: 8 for the pixel and 2 for sums that overshoot
_BLOCK = 8  #: outputs that share a window of inputs: few wasted products, still a real matrix product


class Filter(IntEnum):
    """Resampling filters by Pillow's numbers, which preprocessor files use."""

    BILINEAR = 2
    BICUBIC = 3


_SUPPORT = {Filter.BILINEAR: 1.0, Filter.BICUBIC: 2.0}


@dataclass(frozen=True, eq=False)
class AxisWeights:
    """Banded weights of one axis, cut into blocks of outputs.

    ``taps`` int64 [blocks * window] are the inputs that each block reads. ``matrix`` float64
    [blocks, block, window] holds integers, zero where an output does not depend on an input. ``outputs`` is
    the number of real outputs; the last block may have more.
    """

    taps: Tensor
    matrix: Tensor
    outputs: int


def _triangle(x: Tensor) -> Tensor:
    return (1.0 - x.abs()).clamp(min=0.0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic with a = -0.5, as in Pillow."""
    a = -0.5
    x = x.abs()
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, torch.zeros_like(x)))


def _dense_rows(size: int, start: int, stop: int, filter_: Filter, scale: float) -> tuple[Tensor, Tensor]:
    """First input and integer weights of outputs ``start`` to ``stop``: int64 [n], float64 [n, taps]."""
    stretch = max(scale, 1.0)
    support = _SUPPORT[filter_] * stretch
    centre = (torch.arange(start, stop, dtype=torch.float64) + 0.5) * scale
    first = (centre - support + 0.5).clamp(min=0.0).floor()
    last = (centre + support + 0.5).floor().clamp(max=float(size))
    offset = torch.arange(math.ceil(support) * 2 + 1, dtype=torch.float64)
    position = first[:, None] + offset[None, :]
    shape = _triangle if filter_ is Filter.BILINEAR else _cubic
    weights = shape((position - centre[:, None] + 0.5) * (1.0 / stretch))
    weights = torch.where(position < last[:, None], weights, torch.zeros_like(weights))
    weights = weights / weights.cumsum(1)[:, -1:]
    scaled = weights * float(1 << FRACTION_BITS)
    return first.to(torch.int64), torch.trunc(scaled + torch.copysign(torch.full_like(scaled, 0.5), scaled))


def _block_bands(size: int, first: Tensor, weights: Tensor) -> AxisWeights:
    """Group the rows of ``weights`` into blocks that share a window of inputs."""
    outputs, taps = weights.shape
    blocks = -(-outputs // _BLOCK)
    padding = blocks * _BLOCK - outputs
    first = torch.cat([first, first[-1:].expand(padding)]).view(blocks, _BLOCK)
    weights = torch.cat([weights, weights.new_zeros(padding, taps)]).view(blocks, _BLOCK, taps)
    shift = first - first[:, :1]
    window = int(shift.max()) + taps
    matrix = weights.new_zeros(blocks, _BLOCK, window)
    matrix.scatter_(2, shift[:, :, None] + torch.arange(taps), weights)
    reads = (first[:, :1] + torch.arange(window)).clamp(max=size - 1)
    return AxisWeights(reads.flatten(), matrix, outputs)


@lru_cache(maxsize=64)  # about 0.3 MB each; a miss costs 1 ms
def host_weights(size: int, resized: int, start: int, stop: int, filter_: Filter) -> AxisWeights:
    """The same as ``axis_weights``, in host memory."""
    first, weights = _dense_rows(size, start, stop, filter_, size / resized)
    return _block_bands(size, first, weights)


@lru_cache(maxsize=64)
def axis_weights(
    size: int, resized: int, start: int, stop: int, filter_: Filter, device: torch.device
) -> AxisWeights:
    """Weights from an axis of ``size`` inputs to outputs ``start`` to ``stop`` of ``resized`` ones."""
    banded = host_weights(size, resized, start, stop, filter_)
    return AxisWeights(send(banded.taps, device), send(banded.matrix, device), banded.outputs)
