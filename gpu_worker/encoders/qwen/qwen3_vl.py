"""Family ``qwen3_vl``: images and videos to rows for the Qwen3-VL language model.

A row is the merged row, followed by one of the same width for each deepstack level, in the order of the
blocks: ``hidden`` is out_hidden_size * (1 + ``deepstack_levels``). Patches also get a learned position,
interpolated from a table. Times are those of all Qwen-VL families (``qwen.encoder``). Frames are sampled as
in transformers' Qwen3-VL video processor (2 a second, 4 to 768, odd counts allowed), and one bound holds for
the pixels of all frames together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.attention import Activation, Segments, offsets_of, read_activation
from gpu_worker.encoders.base import GraphForm, Inputs
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.encoders.qwen.config import (
    image_rules,
    load_tower,
    qwen_card,
    read_bounds,
    read_scale,
    read_video_rules,
    read_vision_config,
    require_processors,
    shared_sizes,
)
from gpu_worker.encoders.qwen.encoder import BatchLayout, Grid, QwenEncoder, QwenTower, packed_form
from gpu_worker.encoders.qwen.layout import pack_places, pack_plain
from gpu_worker.encoders.qwen.parts import PatchProjection, Rotation, VisionBlock, VisionSizes, layer_norm
from gpu_worker.encoders.qwen.sizing import PixelBounds, VolumeRule
from gpu_worker.preprocess.tensors import HALF_SCALE, send

PREPROCESS_REVISION = "qwen3_vl-1"

#: Pixels of an image in the published preprocessor files: 64 to 16384 cells of 32 x 32.
_IMAGE_PIXELS = PixelBounds(least=64 * 32 * 32, most=16384 * 32 * 32)

#: Pixels of all frames of a video, if no file gives them: transformers' ``Qwen3VLVideoProcessor``.
_VIDEO_PIXELS = PixelBounds(least=128 * 32 * 32, most=768 * 32 * 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen3VisionShape(VisionSizes):
    """Sizes of one checkpoint.

    ``table_side`` is the side of the square table of positions; ``levels`` are the blocks after which rows
    are taken for deepstack, in rising order, each with its own merger.
    """

    table_side: int
    levels: tuple[int, ...]

    @property
    def row_width(self) -> int:
        """Width of an output row: the merged row, then one of the same width for each level."""
        return self.out_width * (1 + len(self.levels))


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


class FeedForward(nn.Module):
    """Two layers with the checkpoint's activation between."""

    def __init__(self, shape: Qwen3VisionShape, activation: Activation) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(shape.width, shape.hidden)
        self.linear_fc2 = nn.Linear(shape.hidden, shape.width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return self.linear_fc2(self.activation(self.linear_fc1(x)))  # type: ignore[no-any-return]


class PatchMerger(nn.Module):
    """The patches of a cell to one row. A deepstack merger norms the joined row, the last one each patch."""

    def __init__(self, shape: Qwen3VisionShape, *, norm_joined: bool) -> None:
        super().__init__()
        self.normed = shape.joined if norm_joined else shape.width
        self.joined = shape.joined
        self.norm = layer_norm(self.normed)
        self.linear_fc1 = nn.Linear(self.joined, self.joined)
        self.linear_fc2 = nn.Linear(self.joined, shape.out_width)

    def forward(self, x: Tensor) -> Tensor:
        """[cells * merge^2, width] to [cells, out_width]."""
        cells = self.norm(x.view(-1, self.normed)).view(-1, self.joined)
        return self.linear_fc2(F.gelu(self.linear_fc1(cells)))  # type: ignore[no-any-return]


class Qwen3VisionTower(QwenTower):
    """Packed patches to rows, both in reading order of the merge cells. Patches attend to their frame."""

    sizes: Qwen3VisionShape

    def __init__(self, shape: Qwen3VisionShape, activation: Activation) -> None:
        super().__init__()
        self.sizes = shape
        self.deepstack_levels = len(shape.levels)
        self.patch_embed = PatchProjection(shape, bias=True)
        self.pos_embed = nn.Embedding(shape.table_side**2, shape.width)
        self.blocks = nn.ModuleList(
            VisionBlock(shape, norm=layer_norm, feed_forward=FeedForward(shape, activation))
            for _ in range(shape.layers)
        )
        self.merger = PatchMerger(shape, norm_joined=False)
        self.deepstack_merger_list = nn.ModuleList(PatchMerger(shape, norm_joined=True) for _ in shape.levels)

    @property
    def graph_form(self) -> GraphForm:
        """Patches, with the offsets of frames."""
        return packed_form(self.sizes)

    def layout_batch(self, grids: Sequence[Grid], device: torch.device) -> BatchLayout:
        """Reading order of merge cells, and where each patch falls in the table of positions."""
        layout = pack_plain(grids, self.sizes.merge)
        places = pack_places(grids, self.sizes.merge, self.sizes.table_side)
        return BatchLayout(
            positions=layout.positions,
            tensors={
                "frame_offsets": offsets_of(layout.frames, device),
                "corners": send(places.corners, device),
                "shares": send(places.shares, device),
            },
            layout={"frames": layout.frames},
        )

    def forward(self, inputs: Inputs, rotation: Rotation) -> Tensor:
        """[rows, patch values] to [cells, out_width * (1 + levels)]: the last merger's row comes first."""
        held, levels = inputs.tensors, self.sizes.levels
        frames = Segments(offsets=held["frame_offsets"], lengths=inputs.layout["frames"])
        x = self.patch_embed(held["patches"])
        x = x + self._positions(held["corners"], held["shares"]).to(x.dtype)
        joined = []
        for index, block in enumerate(self.blocks):
            x = block(x, frames, rotation)
            if index in levels:
                joined.append(self.deepstack_merger_list[levels.index(index)](x))
        return torch.cat([self.merger(x), *joined], dim=1)

    def _positions(self, corners: Tensor, shares: Tensor) -> Tensor:
        """Learned positions, interpolated in float32: [rows, width].

        ``corners`` int64 [rows, 4] are indices into the table, ``shares`` float32 [rows, 4] their weights.
        """
        learned: Tensor = self.pos_embed(corners[:, 0]).float() * shares[:, :1]
        for corner in range(1, corners.shape[1]):
            learned = learned + self.pos_embed(corners[:, corner]).float() * shares[:, corner, None]
        return learned


def load(request: LoadRequest) -> QwenEncoder:
    """Read the vision tower of a Qwen3-VL checkpoint. Raises ``SettingsError`` if it cannot be used."""
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
    return QwenEncoder(card, tower, rule=rule, scale=read_scale(checkpoint, HALF_SCALE))


def _size_rule(checkpoint: Checkpoint, shape: Qwen3VisionShape) -> VolumeRule:
    """Raises ``SettingsError`` if the file asks for the other rule of frames."""
    processor = checkpoint.video_processor
    if processor.get("cap_pixels_per_frame") is not None:
        require_value(processor, "cap_pixels_per_frame", supported=False)
    return VolumeRule(
        image=read_bounds(checkpoint.image_processor, _IMAGE_PIXELS),
        volume=read_bounds(processor, _VIDEO_PIXELS),
        factor=shape.patch * shape.merge,
        temporal=shape.temporal,
    )
