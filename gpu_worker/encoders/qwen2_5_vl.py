"""Family ``qwen2_5_vl``: images and videos to rows for the Qwen2.5-VL language model.

Rows are merge cells (2 x 2 patches) in reading order, time first. A video's frames are taken in pairs, an odd
one is doubled; ``second_per_grid_ts`` is seconds a pair. Frames share a budget of pixels, as in
qwen-vl-utils, so that a long video does not outgrow the model's context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from epd.contracts.card import EncoderCard, ImageRules, VideoRules
from epd.contracts.errors import InvalidRequest, MediaTooLarge, UnsupportedMedia
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawMedia
from gpu_worker.encoders.base import DecodeFacts, Inputs, ItemPlan
from gpu_worker.encoders.loading import LoadRequest, colour_scale
from gpu_worker.encoders.precision import dtype_name
from gpu_worker.encoders.qwen2_5_vl_model import QwenVisionShape, QwenVisionTower, Turn, rotary_turn
from gpu_worker.encoders.qwen_config import (
    read_image_rules,
    read_video_rules,
    read_vision_shape,
    require_processor,
)
from gpu_worker.encoders.qwen_layout import pack
from gpu_worker.encoders.segments import Segments, offsets_of
from gpu_worker.encoders.weights import load_weights
from gpu_worker.preprocess.normalise import CLIP_SCALE, ColourScale, normalise
from gpu_worker.preprocess.patchify import pad_frames, patchify
from gpu_worker.preprocess.resize import resize
from gpu_worker.preprocess.smart_resize import smart_size

PREPROCESS_REVISION = "qwen2_5_vl-1"

#: Rows that one video may give: 90 % of a context of 128 000, from qwen-vl-utils.
_CONTEXT_ROWS = 115_200

#: Frame pairs whose float values exist at once, so that a long video's do not all.
_PAIRS_AT_ONCE = 8


class Qwen25VLEncoder:
    """``Encoder`` for the vision tower of Qwen2.5-VL checkpoints."""

    def __init__(
        self, card: EncoderCard, tower: QwenVisionTower, shape: QwenVisionShape, scale: ColourScale
    ) -> None:
        self.card = card
        self._tower = tower
        self._shape = shape
        self._scale = scale

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """One row a merge cell. Raises ``MediaTooLarge`` for an aspect ratio above 200 or too many rows."""
        if isinstance(raw, RawAudio):
            raise UnsupportedMedia(f"encoder {self.card.name} takes images and videos, not sound")
        frames = raw.frames if isinstance(raw, RawFrames) else 1
        low, high = self._pixel_bounds(raw, options)
        factor = self._shape.patch * self._shape.merge
        size = smart_size(raw.height, raw.width, factor=factor, min_pixels=low, max_pixels=high)
        plan = self._plan_grid(frames, size)
        if plan.tokens > _CONTEXT_ROWS:
            raise MediaTooLarge(f"{plan.tokens} rows are above the encoder's bound of {_CONTEXT_ROWS}")
        return plan if not isinstance(raw, RawFrames) else self._with_times(plan, raw)

    def _pixel_bounds(self, raw: RawMedia, options: ItemOptions) -> tuple[int, int]:
        """Least and most pixels of one resized picture or frame. Raises ``InvalidRequest``."""
        rules: ImageRules | VideoRules | None = self.card.image
        if isinstance(raw, RawFrames):
            rules = self.card.video
        low = options.min_pixels or (rules and rules.min_pixels) or 1
        high = options.max_pixels or (rules and rules.max_pixels) or 1
        most = (self.card.image and self.card.image.max_pixels) or high
        if not low <= high <= most:
            raise InvalidRequest(f"min_pixels {low} <= max_pixels {high} <= {most} does not hold")
        if isinstance(raw, RawFrames):
            budget = _CONTEXT_ROWS * (self._shape.patch * self._shape.merge) ** 2 * self._shape.temporal
            high = max(min(high, budget // raw.frames), int(low * 1.05))
        return low, high

    def _plan_grid(self, frames: int, size: tuple[int, int]) -> ItemPlan:
        shape = self._shape
        grid = (-(-frames // shape.temporal), size[0] // shape.patch, size[1] // shape.patch)
        patches = grid[0] * grid[1] * grid[2]
        return ItemPlan(
            tokens=patches // shape.merge**2,
            cost=patches,
            bucket="packed",
            target=size,
            segments=(grid[1] * grid[2],) * grid[0],
            facts=DecodeFacts(grid_thw=grid, merge_size=shape.merge),
        )

    def _with_times(self, plan: ItemPlan, raw: RawFrames) -> ItemPlan:
        facts = replace(
            plan.facts,
            second_per_grid_ts=self._shape.temporal / raw.sampled_fps,
            video_timestamps=raw.timestamps,
        )
        return replace(plan, facts=facts)

    @torch.inference_mode()
    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Resize, normalise, cut into patches and put into window order."""
        device, shape = torch.device(self.card.device), self._shape
        grids = [plan.facts.grid_thw for plan in plans if plan.facts.grid_thw is not None]
        layout = pack(grids, shape.merge, shape.window)
        cells = torch.cat([self._patches(raw, plan) for raw, plan in zip(raws, plans, strict=True)])
        ordered = cells.view(layout.order.numel(), -1).index_select(0, layout.order.to(device))
        turn = rotary_turn(layout.positions.to(device), shape.width // shape.heads)
        return Inputs(
            tensors={
                "patches": ordered.view(-1, shape.patch_values),
                "cos": turn.cos,
                "sin": turn.sin,
                "frame_offsets": offsets_of(layout.frames, device),
                "window_offsets": offsets_of(layout.windows, device),
                "restore": layout.restore.to(device),
            },
            layout={"frames": layout.frames, "windows": layout.windows},
        )

    def _patches(self, raw: Tensor, plan: ItemPlan) -> Tensor:
        """Flat patches of one item in reading order, in the encoder's dtype."""
        frames = raw if raw.dim() == 4 else raw[None]
        size = plan.target or (frames.shape[1], frames.shape[2])
        groups = frames.split(_PAIRS_AT_ONCE * self._shape.temporal)
        return torch.cat([self._group_patches(group, size) for group in groups])

    def _group_patches(self, frames: Tensor, size: tuple[int, int]) -> Tensor:
        shape = self._shape
        values = normalise(resize(frames, size), self._scale).to(self._tower.patch_embed.proj.weight.dtype)
        # Only the last group can be odd. A still image is one frame twice: doubled after all other work.
        doubled = pad_frames(values, shape.temporal)
        return patchify(doubled, patch=shape.patch, merge=shape.merge, temporal=shape.temporal)

    @torch.inference_mode()
    def forward(self, inputs: Inputs) -> Tensor:
        """[sum of tokens, out_width]."""
        held, layout = inputs.tensors, inputs.layout
        rows: Tensor = self._tower(
            held["patches"],
            Turn(cos=held["cos"], sin=held["sin"]),
            Segments(offsets=held["frame_offsets"], lengths=layout["frames"]),
            Segments(offsets=held["window_offsets"], lengths=layout["windows"]),
            held["restore"],
        )
        return rows

    def warm_up(self) -> None:
        """One small black picture."""
        side = 2 * self._shape.patch * self._shape.merge
        picture = torch.zeros((side, side, 3), dtype=torch.uint8, device=self.card.device)
        self.forward(self.preprocess([picture], [self._plan_grid(1, (side, side))]))


def load(request: LoadRequest) -> Qwen25VLEncoder:
    """Read the vision tower of a Qwen2.5-VL checkpoint."""
    checkpoint = request.checkpoint
    shape = read_vision_shape(checkpoint)
    require_processor(checkpoint, shape)
    with torch.device("meta"):
        tower = QwenVisionTower(shape)
    weights = load_weights(
        tower,
        checkpoint,
        prefixes=("visual.", "model.visual."),
        device=request.device,
        dtype=request.dtype,
    )
    card = EncoderCard(
        name=request.name,
        family="qwen2_5_vl",
        modalities=(Modality.IMAGE, Modality.VIDEO),
        hidden=shape.out_width,
        dtype=dtype_name(request.dtype),
        weights_digest=weights.digest,
        preprocess_revision=PREPROCESS_REVISION,
        options=("min_pixels", "max_pixels", "fps", "min_frames", "max_frames"),
        image=read_image_rules(checkpoint),
        video=read_video_rules(checkpoint, shape),
        parameters=weights.parameters,
        device=str(request.device),
    )
    return Qwen25VLEncoder(card, tower, shape, colour_scale(checkpoint.image_processor, CLIP_SCALE))
