"""Family ``qwen3_vl``: images and videos to rows for the Qwen3-VL language model.

A row holds the merged row and then one of the same width for each deepstack level, in the order of the
blocks: ``hidden`` is out_hidden_size * (1 + ``deepstack_levels``). Times are those of every Qwen-VL family
(``qwen_encoder``). Frames are taken as transformers' Qwen3-VL video processor takes them (2 a second, 4 to
768, odd counts allowed), and their pixels are bounded together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.activations import read_activation
from gpu_worker.encoders.base import Inputs
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.graph_form import GraphForm
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.encoders.qwen3_vl_model import Qwen3VisionShape, Qwen3VisionTower
from gpu_worker.encoders.qwen_config import (
    image_rules,
    read_bounds,
    read_scale,
    read_video_rules,
    read_vision_config,
    require_processors,
    shared_sizes,
)
from gpu_worker.encoders.qwen_encoder import Arrangement, Grid, QwenEncoder
from gpu_worker.encoders.qwen_graphs import packed_form
from gpu_worker.encoders.qwen_layout import pack_plain
from gpu_worker.encoders.qwen_loading import load_tower, qwen_card
from gpu_worker.encoders.qwen_parts import Turn
from gpu_worker.encoders.qwen_positions import pack_places
from gpu_worker.encoders.qwen_sizing import PixelBounds, VolumeRule
from gpu_worker.encoders.segments import Segments, offsets_of
from gpu_worker.preprocess.normalise import HALF_SCALE
from gpu_worker.preprocess.sending import send

PREPROCESS_REVISION = "qwen3_vl-1"

#: Pixels of an image in the published preprocessor files: 64 to 16384 cells of 32 x 32.
_IMAGE_PIXELS = PixelBounds(least=64 * 32 * 32, most=16384 * 32 * 32)

#: Pixels of all frames of a video where no file says: transformers' ``Qwen3VLVideoProcessor``.
_VIDEO_PIXELS = PixelBounds(least=128 * 32 * 32, most=768 * 32 * 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepstackArm:
    """The tower of Qwen3-VL: every row attends to its whole frame, and knows its place from a table."""

    tower: Qwen3VisionTower
    sizes: Qwen3VisionShape

    @property
    def levels(self) -> int:
        """How many deepstack levels are joined to each row."""
        return len(self.sizes.levels)

    @property
    def graph_form(self) -> GraphForm:
        """Rows, and the offsets of frames."""
        return packed_form(self.sizes)

    def arrange(self, grids: Sequence[Grid], device: torch.device) -> Arrangement:
        """Reading order of merge cells, and where each patch falls in the table of positions."""
        layout = pack_plain(grids, self.sizes.merge)
        places = pack_places(grids, self.sizes.merge, self.sizes.table_side)
        return Arrangement(
            positions=layout.positions,
            tensors={
                "frame_offsets": offsets_of(layout.frames, device),
                "corners": send(places.corners, device),
                "shares": send(places.shares, device),
            },
            layout={"frames": layout.frames},
        )

    def rows(self, inputs: Inputs, turn: Turn) -> Tensor:
        """[cells, out_width * (1 + levels)]."""
        held = inputs.tensors
        frames = Segments(offsets=held["frame_offsets"], lengths=inputs.layout["frames"])
        rows: Tensor = self.tower(held["patches"], held["corners"], held["shares"], turn, frames)
        return rows


def load(request: LoadRequest) -> QwenEncoder:
    """Read the vision tower of a Qwen3-VL checkpoint."""
    checkpoint = request.checkpoint
    config = read_vision_config(checkpoint)
    shape = _shape(config)
    require_processors(checkpoint, shape)
    rule = _size_rule(checkpoint, shape)
    with torch.device("meta"):
        tower = Qwen3VisionTower(shape, read_activation(config, "gelu_pytorch_tanh"))
    card = qwen_card(
        request,
        load_tower(request, tower),
        family="qwen3_vl",
        revision=PREPROCESS_REVISION,
        hidden=shape.row_width,
        image=image_rules(rule.image),
        video=read_video_rules(checkpoint, frame_multiple=1),
    )
    arm = DeepstackArm(tower=tower, sizes=shape)
    return QwenEncoder(card, arm, rule=rule, scale=read_scale(checkpoint, HALF_SCALE))


def _size_rule(checkpoint: Checkpoint, shape: Qwen3VisionShape) -> VolumeRule:
    """Raises ``SettingsError`` where the file asks for the other rule of frames."""
    processor = checkpoint.video_processor
    if processor.get("cap_pixels_per_frame") is not None:
        require_value(processor, "cap_pixels_per_frame", supported=False)
    return VolumeRule(
        image=read_bounds(checkpoint.image_processor, _IMAGE_PIXELS),
        volume=read_bounds(processor, _VIDEO_PIXELS),
        factor=shape.patch * shape.merge,
        temporal=shape.temporal,
    )


def _shape(config: Mapping[str, Any]) -> Qwen3VisionShape:
    places = required_int(config, "num_position_embeddings")
    side = isqrt(places)
    if side * side != places:
        raise SettingsError(f"checkpoint: num_position_embeddings {places} is not a square")
    return Qwen3VisionShape(
        **shared_sizes(config),
        width=required_int(config, "hidden_size"),
        hidden=required_int(config, "intermediate_size"),
        out_width=required_int(config, "out_hidden_size"),
        table_side=side,
        levels=_levels(config),
    )


def _levels(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Blocks of the deepstack levels: a rising list, because rows are joined in the order of the blocks."""
    levels, depth = config.get("deepstack_visual_indexes"), required_int(config, "depth")
    if not isinstance(levels, list) or levels != sorted({n for n in levels if n in range(depth)}):
        raise SettingsError(
            f"checkpoint: deepstack_visual_indexes is {levels!r}, not a rising list of blocks below {depth}"
        )
    return tuple(levels)
