"""Where the patches of a grid fall in Qwen3-VL's square table of learned positions, decided on the host.

The corners of a grid lie on the corners of the table, and a patch takes the four places around it, each in
the share that bilinear interpolation gives it. Source: Qwen3-VL's ``fast_pos_embed_interpolate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gpu_worker.encoders.qwen_layout import cell_positions


@dataclass(frozen=True, eq=False)
class TablePlaces:
    """``corners`` int64 [rows, 4]: places in the flat table. ``shares`` float32 [rows, 4]: sum 1 a row."""

    corners: Tensor
    shares: Tensor


def _axis(count: int, side: int) -> tuple[Tensor, Tensor]:
    """Both neighbours int64 [count, 2] and their shares float32 [count, 2] on one axis of the table."""
    place = torch.arange(count, dtype=torch.float32) * (side - 1) / max(count - 1, 1)
    below = place.floor()
    share = place - below
    low = below.to(torch.int64)
    return torch.stack([low, (low + 1).clamp(max=side - 1)], 1), torch.stack([1.0 - share, share], 1)


@lru_cache(maxsize=512)
def frame_places(grid_h: int, grid_w: int, merge: int, side: int) -> TablePlaces:
    """Places of one frame's patches, in reading order of its merge cells."""
    y, x = cell_positions(grid_h, grid_w, merge).flatten(0, 1).unbind(1)
    (rows, row_shares), (columns, column_shares) = _axis(grid_h, side), _axis(grid_w, side)
    corners = rows[y][:, :, None] * side + columns[x][:, None, :]
    shares = row_shares[y][:, :, None] * column_shares[x][:, None, :]
    return TablePlaces(corners.flatten(1), shares.flatten(1))


def pack_places(grids: Sequence[tuple[int, int, int]], merge: int, side: int) -> TablePlaces:
    """Places of items with these (time, height, width) grids, in order; each frame of an item is alike."""
    frames = [(frame_places(h, w, merge, side), steps) for steps, h, w in grids]
    return TablePlaces(
        torch.cat([places.corners.repeat(steps, 1) for places, steps in frames]),
        torch.cat([places.shares.repeat(steps, 1) for places, steps in frames]),
    )
