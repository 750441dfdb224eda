"""``Encoder`` of the Qwen-VL families: everything but the tower is the same for all of them.

Rows are merge cells (2 x 2 patches) in reading order, time first. The frames of a video are taken in pairs,
and an odd last frame is doubled; ``second_per_grid_ts`` is the seconds that one pair covers.
``video_timestamps`` are those of the sampled frames: an engine that wants one time per pair takes the mean of
the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import MediaTooLarge, UnsupportedMedia
from epd.contracts.media import ItemOptions, RawAudio, RawFrames, RawMedia
from gpu_worker.encoders.base import DecodeFacts, GraphForm, Inputs, ItemPlan, SegmentRule
from gpu_worker.encoders.qwen.parts import Rotation, VisionSizes, rotation_at
from gpu_worker.encoders.qwen.sizing import CONTEXT_ROWS, SizeRule
from gpu_worker.preprocess.resize import resize
from gpu_worker.preprocess.tensors import ColourScale, normalise, pad_frames, patchify, send

#: Frame pairs whose float values exist at once. A long video would need too much memory otherwise.
_PAIRS_AT_ONCE = 8

#: Merge cells of the smallest bucket, and of the step between buckets.
_SMALLEST_CELLS = 64
_STEP_CELLS = 16

#: Merge cells of a typical frame, an image of about 230 pixels a side. It sets the segments of a bucket.
_TYPICAL_FRAME_CELLS = 64

#: (time, height, width) in patches.
Grid = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """How a batch of grids is packed: the tower's own tensors and layout, without the patches.

    ``positions`` int64 [rows, 2] are (y, x) of each patch. ``order`` int64 [cells] puts merge cells into the
    tower's order; ``None`` means reading order.
    """

    positions: Tensor
    tensors: dict[str, Tensor]
    layout: dict[str, tuple[int, ...]]
    order: Tensor | None = None


class QwenTower(nn.Module, ABC):
    """The tower of one Qwen-VL family, and how a batch is laid out for it."""

    sizes: VisionSizes

    #: How many deepstack levels are joined to each row.
    deepstack_levels: int = 0

    @property
    @abstractmethod
    def graph_form(self) -> GraphForm:
        """How the tensors of ``layout_batch`` grow with the patches."""

    @abstractmethod
    def layout_batch(self, grids: Sequence[Grid], device: torch.device) -> BatchLayout:
        """Lay out items of these grids, in order. Decided on the host."""

    @abstractmethod
    def forward(self, inputs: Inputs, rotation: Rotation) -> Tensor:
        """Packed patches [rows, patch values] to [sum of cells, hidden]."""


class QwenEncoder:
    """``Encoder`` for the vision tower of a Qwen-VL checkpoint."""

    def __init__(self, card: EncoderCard, tower: QwenTower, *, rule: SizeRule, scale: ColourScale) -> None:
        self.card = card
        self._tower = tower
        self._sizes = tower.sizes
        self._rule = rule
        self._scale = scale
        self._dtype: torch.dtype = getattr(torch, card.dtype)
        self.graph_form = tower.graph_form

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """One row for each merge cell.

        Raises:
            UnsupportedMedia: the item is audio.
            MediaTooLarge: the aspect ratio is above 200, or there are more rows than a context holds.
        """
        if isinstance(raw, RawAudio):
            raise UnsupportedMedia(f"encoder {self.card.name} takes images and videos, not audio")
        frames = raw.frames if isinstance(raw, RawFrames) else 1
        plan = self._plan_grid(frames, self._rule.size(raw, options))
        if plan.tokens > CONTEXT_ROWS:
            raise MediaTooLarge(f"{plan.tokens} rows are above the encoder's bound of {CONTEXT_ROWS}")
        return plan if not isinstance(raw, RawFrames) else self._with_times(plan, raw)

    def _plan_grid(self, frames: int, size: tuple[int, int]) -> ItemPlan:
        sizes = self._sizes
        grid = (-(-frames // sizes.temporal), size[0] // sizes.patch, size[1] // sizes.patch)
        patches = grid[0] * grid[1] * grid[2]
        levels = self._tower.deepstack_levels
        return ItemPlan(
            tokens=patches // sizes.merge**2,
            cost=patches,
            bucket="packed",
            target=size,
            segments=(grid[1] * grid[2],) * grid[0],
            raw_step=sizes.temporal,
            facts=DecodeFacts(grid_thw=grid, merge_size=sizes.merge, deepstack_levels=levels),
        )

    def _with_times(self, plan: ItemPlan, raw: RawFrames) -> ItemPlan:
        facts = replace(
            plan.facts,
            second_per_grid_ts=self._sizes.temporal / raw.sampled_fps,
            video_timestamps=raw.timestamps,
        )
        return replace(plan, facts=facts)

    @torch.inference_mode()
    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Resize, normalise, cut into patches, and put these into the tower's order."""
        device, sizes = torch.device(self.card.device), self._sizes
        grids = [plan.facts.grid_thw for plan in plans if plan.facts.grid_thw is not None]
        batch = self._tower.layout_batch(grids, device)
        patches = torch.cat([self.patches(raw, plan) for raw, plan in zip(raws, plans, strict=True)])
        if batch.order is not None:
            cells = patches.view(batch.order.numel(), -1)
            patches = cells.index_select(0, send(batch.order, device)).view(-1, sizes.patch_values)
        rotation = rotation_at(send(batch.positions, device), sizes.width // sizes.heads)
        tensors = {"patches": patches, "cos": rotation.cos, "sin": rotation.sin, **batch.tensors}
        return Inputs(tensors=tensors, layout=batch.layout)

    def patches(self, raw: Tensor, plan: ItemPlan) -> Tensor:
        """Flat patches [patches, patch values] of one item in reading order, in the encoder's dtype."""
        frames = raw if raw.dim() == 4 else raw[None]
        size = plan.target or (frames.shape[1], frames.shape[2])
        groups = frames.split(_PAIRS_AT_ONCE * self._sizes.temporal)
        return torch.cat([self._group_patches(group, size) for group in groups])

    def _group_patches(self, frames: Tensor, size: tuple[int, int]) -> Tensor:
        sizes = self._sizes
        values = normalise(resize(frames, size), self._scale).to(self._dtype)
        # Only the last group can be odd. An image is one frame twice: doubled after all other work.
        doubled = pad_frames(values, sizes.temporal)
        return patchify(doubled, patch=sizes.patch, merge=sizes.merge, temporal=sizes.temporal)

    @torch.inference_mode()
    def forward(self, inputs: Inputs) -> Tensor:
        """[sum of tokens, hidden]."""
        rotation = Rotation(cos=inputs.tensors["cos"], sin=inputs.tensors["sin"])
        rows: Tensor = self._tower(inputs, rotation)
        return rows

    def sample(self) -> Inputs:
        """One small black image."""
        side = 2 * self._sizes.patch * self._sizes.merge
        image = torch.zeros((side, side, 3), dtype=torch.uint8, device=self.card.device)
        return self.preprocess([image], [self._plan_grid(1, (side, side))])

    def warm_up(self) -> None:
        """Run the sample through the tower once."""
        self.forward(self.sample())


def packed_form(sizes: VisionSizes) -> GraphForm:
    """Patches, with the offsets of frames."""
    cell = sizes.merge**2
    return GraphForm(
        units="patches",
        smallest=_SMALLEST_CELLS * cell,
        multiple=_STEP_CELLS * cell,
        segments={
            "frame_offsets": SegmentRule(lengths="frames", longest=None, typical=_TYPICAL_FRAME_CELLS * cell)
        },
    )


def windowed_form(sizes: VisionSizes, window: int) -> GraphForm:
    """``packed_form``, and the offsets of windows of ``window`` merge cells a side; edges cut windows."""
    cell = sizes.merge**2
    whole = window * window * cell
    plain = packed_form(sizes)
    windows = SegmentRule(lengths="windows", longest=whole, typical=max(1, whole // 2))
    return replace(plain, indices={"restore": cell}, segments={**plain.segments, "window_offsets": windows})
