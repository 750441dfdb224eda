"""Items that cost more than a batch may: cut at their own segments, run in parts, joined in order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from epd.contracts.media import RawMedia
from gpu_worker.encoders.base import DecodeFacts, Encoder, Inputs, ItemPlan
from gpu_worker.engine.batcher import split
from gpu_worker.engine.device import CpuDevice
from gpu_worker.engine.forward import EagerRunner, ForwardPass, Rows
from gpu_worker.engine.slot import Planned
from gpu_worker.engine.staging import StagedItem
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, random_image, raw_audio, raw_frames, tiny_encoder
from tests.unit.engine.slot_makers import make_slot


def video_plan(frames: int, cost: int, raw_step: int | None = 2) -> ItemPlan:
    return ItemPlan(
        tokens=frames * 3, cost=frames * cost, bucket="b", segments=(cost,) * frames, raw_step=raw_step,
        facts=DecodeFacts(grid_thw=(frames, 4, 6), merge_size=2),
    )  # fmt: skip


@given(frames=st.integers(1, 40), cost=st.integers(1, 50), max_cost=st.integers(1, 400))
def test_parts_are_the_item_in_order_and_within_the_cost(frames: int, cost: int, max_cost: int) -> None:
    plan = video_plan(frames, cost)
    parts = split(plan, max_cost)
    raw = torch.arange(2 * frames - 1)  # the last pair of frames is half there
    assert torch.equal(torch.cat([raw[part.raw] for part in parts]), raw)
    assert [n for part in parts for n in part.plan.segments] == list(plan.segments)
    for total in ("tokens", "cost"):
        assert sum(getattr(part.plan, total) for part in parts) == getattr(plan, total)
    grids = [part.plan.facts.grid_thw or (0, 0, 0) for part in parts]
    assert sum(grid[0] for grid in grids) == frames
    assert all(grid[1:] == (4, 6) for grid in grids)
    for part in parts:
        assert part.plan.cost <= max_cost or len(part.plan.segments) == 1
    # No two neighbours would have fitted into one.
    costs = [part.plan.cost for part in parts]
    assert all(a + b > max_cost for a, b in pairwise(costs))


def test_what_cannot_be_cut_is_one_part() -> None:
    for plan in (video_plan(9, 10, raw_step=None), video_plan(1, 100), video_plan(2, 10)):
        assert [part.plan for part in split(plan, 20)] == [plan]


class CountingRunner(EagerRunner):
    """Keeps how many rows each forward gave."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        rows = super().run(encoder, inputs)
        self.rows.append(rows.shape[0])
        return rows


def item_of(family: str) -> tuple[RawMedia, Tensor]:
    """A long item whose last segment is not whole, where the family has such ones."""
    if family == "whisper":
        samples = 480_000 * 4 + 1234
        return raw_audio(samples), torch.randn(samples, generator=torch.Generator().manual_seed(1)) * 0.1
    return raw_frames(7, 60, 90), random_image(60, 90, frames=7)


@pytest.mark.parametrize(
    "family", ["whisper", "dinov2", "clip", "siglip", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
)
def test_rows_in_parts_are_those_of_the_whole(family: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    encoder = tiny_encoder(family, tmp_path)
    raw, values = item_of(family)
    plan = encoder.plan(raw, NO_OPTIONS)
    staged = StagedItem(Planned(make_slot(), plan), values, 0.0)
    results = []
    for max_cost in (plan.cost, 2 * plan.segments[0]):
        runner = CountingRunner()
        (rows,) = ForwardPass(CpuDevice(), runner, max_cost).run(encoder, [staged])
        assert isinstance(rows, Rows)
        results.append((rows.packed, runner.rows))
    (whole, one), (joined, many) = results
    assert one == [plan.tokens]
    assert len(many) == -(-len(plan.segments) // 2)
    torch.testing.assert_close(joined, whole, rtol=1e-5, atol=1e-5)
