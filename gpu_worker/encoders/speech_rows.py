"""Packed rows of speech: which rows of padded windows are real, and how pairs of them are averaged.

The second convolution halves the frames, so a window with n valid frames has ``(n - 1) // 2 + 1`` valid
rows. After the blocks neighbouring rows are averaged two by two; an odd last one is left out. Both as in the
published processors' count ``((n - 1) // 2 + 1 - 2) // 2 + 1``. Only valid rows go through the blocks: the
published towers keep the others, but no valid row attends to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpu_worker.encoders.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """What a tower needs beside the features; the tensors are on the device.

    ``frames`` int64 [windows]: valid feature frames. ``keep`` int64 [rows]: valid rows among those of all
    padded windows. ``pairs`` int64 [2 * tokens]: the packed rows that make each token. ``segments``: rows of
    each window, which attend only to themselves.
    """

    frames: Tensor
    keep: Tensor
    pairs: Tensor
    segments: Segments


def rows_of(frames: int) -> int:
    """Valid rows after the second convolution."""
    return (frames + 1) // 2


def kept_rows(windows: Sequence[int], stride: int) -> Tensor:
    """int64 [rows]: the first rows of each window, where padded windows have ``stride`` rows each."""
    return torch.cat([start * stride + torch.arange(rows) for start, rows in enumerate(windows)])


def paired_rows(runs: Iterable[int]) -> Tensor:
    """int64 [2 * tokens]: all rows of packed runs but the odd last one of each."""
    parts, start = [], 0
    for rows in runs:
        parts.append(start + torch.arange(rows - rows % 2))
        start += rows
    return torch.cat(parts)


def run_packed(embedded: Tensor, blocks: nn.ModuleList, rows: PackedRows) -> Tensor:
    """[windows, rows, width] of padded windows to averaged rows [tokens, width]."""
    x: Tensor = embedded.flatten(0, 1).index_select(0, rows.keep)
    for block in blocks:
        x = block(x, rows.segments)
    return x.index_select(0, rows.pairs).view(-1, 2, x.shape[1]).mean(1)
