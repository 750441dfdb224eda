"""Row order of the Qwen-VL vision towers: which patches attend to which, decided on the host.

In Qwen2.5-VL most blocks attend inside square windows of a frame. Rows stay in window order through all
blocks and go back to reading order at the end. Windows of one size lie next to each other (any order gives
the same result), because a CPU runs equal neighbours in one dense call. The other families keep reading
order; Qwen3-VL also looks up each patch in a table of learned positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PlainLayout:
    """Several items in reading order of their merge cells, without windows.

    ``positions`` int64 [rows, 2]: (y, x) of each patch; ``frames``: rows of each frame.
    """

    positions: Tensor
    frames: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FrameLayout:
    """One frame of a grid.

    ``order`` int64 [cells]: merge cells in window order. ``windows``: rows of each window, in that order.
    ``positions`` int64 [rows, 2]: (y, x) of each patch, in window order, rows of a cell together.
    """

    order: Tensor
    windows: tuple[int, ...]
    positions: Tensor


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """Several items in window order, their frames one after the other.

    ``order`` int64 [cells]; ``restore`` int64 [cells] undoes it; ``positions`` int64 [rows, 2];
    ``frames`` and ``windows`` are rows of each full-attention and each window segment.
    """

    order: Tensor
    restore: Tensor
    positions: Tensor
    frames: tuple[int, ...]
    windows: tuple[int, ...]


@lru_cache(maxsize=512)
def frame_layout(grid_h: int, grid_w: int, merge: int, window: int) -> FrameLayout:
    """Layout of a frame of ``grid_h`` x ``grid_w`` patches in windows of ``window`` x ``window`` cells."""
    cells_h, cells_w = grid_h // merge, grid_w // merge
    across = -(-cells_w // window)
    y, x = torch.meshgrid(torch.arange(cells_h), torch.arange(cells_w), indexing="ij")
    owner = ((y // window) * across + x // window).flatten()
    sizes = torch.bincount(owner)
    by_size = torch.argsort(sizes, descending=True, stable=True)
    rank = torch.empty_like(by_size)
    rank[by_size] = torch.arange(by_size.numel())
    order = torch.argsort(rank[owner], stable=True)
    windows = tuple(int(size) * merge * merge for size in sizes[by_size])
    return FrameLayout(order, windows, cell_positions(grid_h, grid_w, merge)[order].flatten(0, 1))


@lru_cache(maxsize=512)
def cell_positions(grid_h: int, grid_w: int, merge: int) -> Tensor:
    """(y, x) of the patches of each merge cell in reading order: int64 [cells, merge * merge, 2]."""
    y, x = torch.meshgrid(torch.arange(grid_h), torch.arange(grid_w), indexing="ij")
    grid = torch.stack([y, x], dim=-1).view(grid_h // merge, merge, grid_w // merge, merge, 2)
    return grid.transpose(1, 2).reshape(-1, merge * merge, 2)


def pack_windows(grids: Sequence[tuple[int, int, int]], merge: int, window: int) -> PackedLayout:
    """Window order of items with these (time, height, width) grids, in order."""
    orders, positions, frames, windows = [], [], list[int](), list[int]()
    cells = 0
    for steps, grid_h, grid_w in grids:
        one = frame_layout(grid_h, grid_w, merge, window)
        starts = cells + torch.arange(steps)[:, None] * one.order.numel()
        orders.append((starts + one.order).flatten())
        positions.append(one.positions.repeat(steps, 1))
        frames += [grid_h * grid_w] * steps
        windows += one.windows * steps
        cells += steps * one.order.numel()
    order = torch.cat(orders)
    restore = torch.empty_like(order)
    restore[order] = torch.arange(cells)
    return PackedLayout(order, restore, torch.cat(positions), tuple(frames), tuple(windows))


def pack_plain(grids: Sequence[tuple[int, int, int]], merge: int) -> PlainLayout:
    """Reading order of items with these (time, height, width) grids, in order."""
    positions = [cell_positions(h, w, merge).flatten(0, 1).repeat(steps, 1) for steps, h, w in grids]
    frames = [h * w for steps, h, w in grids for _ in range(steps)]
    return PlainLayout(torch.cat(positions), tuple(frames))


@dataclass(frozen=True, eq=False)
class TablePlaces:
    """``corners`` int64 [rows, 4] index the flat table. ``shares`` float32 [rows, 4] sum to 1 in each row."""

    corners: Tensor
    shares: Tensor


def _axis(count: int, side: int) -> tuple[Tensor, Tensor]:
    """Both neighbours, int64 [count, 2], and their shares, float32 [count, 2], on one axis of the table."""
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
    """Places of items with these (time, height, width) grids, in order; the frames of an item are alike."""
    frames = [(frame_places(h, w, merge, side), steps) for steps, h, w in grids]
    return TablePlaces(
        torch.cat([places.corners.repeat(steps, 1) for places, steps in frames]),
        torch.cat([places.shares.repeat(steps, 1) for places, steps in frames]),
    )
