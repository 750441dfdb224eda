"""Window order of the Qwen2.5-VL tower, and attention over packed segments, against direct definitions."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from gpu_worker.encoders.attention import Segments, attend, offsets_of
from gpu_worker.encoders.qwen.layout import frame_layout, pack_windows

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("grid_h", "grid_w"), [(2, 2), (8, 8), (4, 58), (10, 6), (24, 36), (2, 104), (18, 18), (7 * 2, 11 * 2)]
)
def test_a_window_holds_exactly_its_square(grid_h: int, grid_w: int) -> None:
    layout = frame_layout(grid_h, grid_w, 2, 4)
    columns = grid_w // 2
    start = 0
    seen = set()
    for rows in layout.windows:
        cells = layout.order[start : start + rows // 4]
        squares = {(int(c) // columns // 4, int(c) % columns // 4) for c in cells}
        assert len(squares) == 1
        seen |= squares
        start += rows // 4
    assert start == layout.order.numel() == (grid_h // 2) * columns
    assert len(seen) == len(layout.windows)
    assert list(layout.windows) == sorted(layout.windows, reverse=True)


def test_positions_follow_their_patches() -> None:
    layout = frame_layout(6, 10, 2, 4)
    for place, cell in enumerate(layout.order.tolist()):
        y, x = 2 * (cell // 5), 2 * (cell % 5)
        wanted = [[y, x], [y, x + 1], [y + 1, x], [y + 1, x + 1]]
        assert layout.positions[4 * place : 4 * place + 4].tolist() == wanted


def test_packing_keeps_items_apart_and_can_be_undone() -> None:
    grids = [(1, 4, 6), (3, 8, 4), (1, 2, 2)]
    layout = pack_windows(grids, 2, 4)
    assert layout.frames == (24, 32, 32, 32, 4)
    assert sum(layout.windows) == sum(layout.frames) == layout.positions.shape[0]
    cells = torch.arange(layout.order.numel())
    assert torch.equal(layout.order[layout.restore], cells)
    ends = torch.tensor([6, 14, 22, 30, 31])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        assert sorted(layout.order[start:end].tolist()) == list(range(start, end))


@pytest.mark.parametrize("seed", range(8))
def test_attention_stays_inside_its_segment(seed: int) -> None:
    chooser = random.Random(seed)
    lengths = tuple(chooser.choice([1, 4, 4, 16, 16, 7]) for _ in range(chooser.randint(1, 12)))
    rows = sum(lengths)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(rows, 2, 8, generator=generator) for _ in range(3))
    got = attend(q, k, v, Segments(offsets=offsets_of(lengths, CPU), lengths=lengths))
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    allowed = owner[:, None] == owner[None, :]
    wanted = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=allowed
    ).transpose(0, 1)
    torch.testing.assert_close(got, wanted.flatten(1), atol=1e-5, rtol=1e-5)


def test_offsets_start_at_nothing_and_end_at_all() -> None:
    assert offsets_of((3, 1, 4), CPU).tolist() == [0, 3, 4, 8]
    assert offsets_of((3,), CPU).dtype == torch.int32
