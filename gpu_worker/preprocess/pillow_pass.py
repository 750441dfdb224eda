"""One pass of a resize on a processor: Pillow itself, in bands on as many threads as torch computes with.

The result is that of the tensor pass, bit for bit. On a processor this takes about half of its work, and no
thread waits for another between operators: on two cores that other processes kept busy too, a picture of
1080p took 88 ms like this and 732 ms as tensors, at their best of 15 tries each (printed by
``python -m bench.engine.resizing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gpu_worker.preprocess.resample import Filter

#: Values of a band for which another thread is worth its waking: about half a millisecond of work.
_BAND_VALUES = 1 << 17

#: A frame, and where its band begins and ends.
_Job = tuple[int, int, int]


def pillow_pass(
    pictures: Tensor, axis: int, resized: int, start: int, length: int, filter_: Filter
) -> Tensor:
    """Resize axis 1 (rows) or 2 (columns) of uint8 [F, H, W, 3], and keep ``length`` entries of it."""
    source, rows = pictures.numpy(), axis == 1
    shape = list(pictures.shape)
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

    _run_all(run, list(_jobs(pictures, 2 if rows else 1)))
    return result


def _jobs(pictures: Tensor, across: int) -> Iterator[_Job]:
    """Bands of each frame across its other axis: no more than there are threads."""
    frames, size = pictures.shape[0], pictures.shape[across]
    worth = max(1, pictures[0].numel() // _BAND_VALUES)
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
    """Threads that wait for work as long as the process lives; Pillow leaves the interpreter to others."""
    return ThreadPoolExecutor(threads, thread_name_prefix="resize")
