"""Antialiased resize of 8-bit images on any device, equal to ``PIL.Image.resize`` bit for bit.

Pillow works in two passes, one for each axis, and rounds to 8 bits after each. A resize in one float pass is
off by up to 19 levels, so the rounding between the passes and their order matter. A pass is a few kernels on
an accelerator; on a CPU it is Pillow itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gpu_worker.preprocess.resample import FRACTION_BITS, Filter, axis_weights

#: Values of a band that are worth waking another thread for: about half a millisecond of work.
_BAND_VALUES = 1 << 17

_CHUNK_VALUES = 1 << 20  #: float64 values in use at once on a CPU (8 MB: fits its caches)
_CHUNK_VALUES_DEVICE = 1 << 26  #: the same on an accelerator (512 MB): few launches
_MOST_CUT = 4  #: Pillow resizes an axis only if it is at most so many times as long as the kept part


#: The index of a frame, and where its band begins and ends.
_Job = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The wanted part of the resized image, in its pixels."""

    top: int
    left: int
    height: int
    width: int


class AxisPass(Protocol):
    """One pass of a resize."""

    def __call__(
        self, images: Tensor, axis: int, resized: int, start: int, length: int, filter_: Filter
    ) -> Tensor:
        """Resize ``axis`` (1 or 2) of uint8 [F, H, W, 3], and keep ``length`` entries from ``start`` on."""
        ...


def resize(
    images: Tensor,
    size: tuple[int, int],
    *,
    filter_: Filter = Filter.BICUBIC,
    window: Window | None = None,
    way: AxisPass | None = None,
) -> Tensor:
    """Resize uint8 [F, H, W, 3] to ``size`` (height, width), as uint8 [F, 3, height, width].

    With ``window`` only that part of the result is computed and returned, so a crop of a very long image
    costs no more than any other crop. ``way`` is how a pass is done; by default the device decides. The
    result is the same.
    """
    part = window or Window(top=0, left=0, height=size[0], width=size[1])
    passes = [(2, size[1], part.left, part.width), (1, size[0], part.top, part.height)]
    if _rows_first(images.shape[1], images.shape[2], size):
        passes.reverse()
    for axis, resized, start, length in passes:
        unchanged = (images.shape[axis], 0, images.shape[axis])
        if (resized, start, length) != unchanged:
            one_pass = way or _chosen_pass(images, resized, length)
            images = one_pass(images, axis, resized, start, length, filter_)
    return images.permute(0, 3, 1, 2).contiguous()


def _rows_first(rows: int, columns: int, size: tuple[int, int]) -> bool:
    """Whether Pillow does the vertical pass first.

    Pillow 13 does so if the height loses more than twice as many pixels as the width (python-pillow PR 9549;
    the bound was found by measuring, and 500 random sizes agree). Earlier releases always resize the width
    first; the two orders differ only in rounding.
    """
    lost_rows, lost_columns = rows - size[0], columns - size[1]
    return lost_rows > 0 and lost_rows > 2 * lost_columns


def _chosen_pass(images: Tensor, resized: int, length: int) -> AxisPass:
    """Pillow on a CPU, unless it would compute much that is then cut off."""
    if images.device.type == "cpu" and resized <= _MOST_CUT * length:
        return pillow_pass
    return tensor_pass


def tensor_pass(images: Tensor, axis: int, resized: int, start: int, length: int, filter_: Filter) -> Tensor:
    """One pass as matrix products, on any device. Arguments as in ``AxisPass``."""
    size = images.shape[axis]
    lines = images.movedim(axis, 0)
    passed = _resample_first_axis(lines.reshape(size, -1), resized, start, start + length, filter_)
    return passed.view(length, *lines.shape[1:]).movedim(0, axis)


def _resample_first_axis(lines: Tensor, resized: int, start: int, stop: int, filter_: Filter) -> Tensor:
    """uint8 [size, n] to uint8 [stop - start, n]; rounded half up and clamped, as in Pillow."""
    weights = axis_weights(lines.shape[0], resized, start, stop, filter_, lines.device)
    blocks, _, window = weights.matrix.shape
    budget = _CHUNK_VALUES if lines.device.type == "cpu" else _CHUNK_VALUES_DEVICE
    step = max(64, budget // (blocks * window))
    half = float(1 << (FRACTION_BITS - 1))
    result = torch.empty((weights.outputs, lines.shape[1]), dtype=torch.uint8, device=lines.device)
    for begin in range(0, lines.shape[1], step):
        reads = lines[:, begin : begin + step].index_select(0, weights.taps)
        sums = torch.bmm(weights.matrix, reads.to(torch.float64).view(blocks, window, -1))
        levels = sums.add_(half).mul_(1.0 / (1 << FRACTION_BITS)).floor_().clamp_(0.0, 255.0)
        result[:, begin : begin + step] = levels.flatten(0, 1)[: weights.outputs]
    return result


def pillow_pass(images: Tensor, axis: int, resized: int, start: int, length: int, filter_: Filter) -> Tensor:
    """One pass by Pillow, on a CPU; bands of a frame run in parallel. Arguments as in ``AxisPass``."""
    source, rows = images.numpy(), axis == 1
    shape = list(images.shape)
    shape[axis] = length
    result = torch.empty(shape, dtype=torch.uint8)
    target = result.numpy()

    def run(job: _Job) -> None:
        frame, begin, end = job
        band = source[frame, :, begin:end] if rows else source[frame, begin:end]
        size = (end - begin, resized) if rows else (resized, end - begin)
        image = Image.fromarray(band).resize(size, Image.Resampling(int(filter_)))
        kept = np.asarray(image)
        if rows:
            target[frame, :, begin:end] = kept[start : start + length]
        else:
            target[frame, begin:end] = kept[:, start : start + length]

    _run_all(run, list(_jobs(images, 2 if rows else 1)))
    return result


def _jobs(images: Tensor, across: int) -> Iterator[_Job]:
    """Bands of each frame across its other axis, not more than there are threads."""
    frames, size = images.shape[0], images.shape[across]
    worth = max(1, images[0].numel() // _BAND_VALUES)
    bands = min(size, worth, max(1, torch.get_num_threads() // frames))
    for frame in range(frames):
        for band in range(bands):
            yield frame, size * band // bands, size * (band + 1) // bands


def _run_all(run: Callable[[_Job], None], jobs: list[_Job]) -> None:
    threads = torch.get_num_threads()
    if threads == 1 or len(jobs) == 1:
        for job in jobs:
            run(job)
        return
    for _ in _pool(threads).map(run, jobs):
        pass


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads for the life of the process. They run in parallel, as Pillow releases the GIL."""
    return ThreadPoolExecutor(threads, thread_name_prefix="resize")
