"""The vision tower of Qwen3-VL as a module with the checkpoints' own tensor names.

Source: Bai et al. 2025, "Qwen3-VL Technical Report", section 2: as Qwen2-VL's tower, with a learned table of
positions besides the rotary ones, and with deepstack: the rows after some blocks go through mergers of their
own, for the first layers of the language model. ``forward`` reads nothing back from the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from gpu_worker.encoders.activations import Activation
from gpu_worker.encoders.qwen_parts import PatchProjection, Turn, VisionBlock, VisionSizes, layer_norm
from gpu_worker.encoders.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen3VisionShape(VisionSizes):
    """Sizes of one checkpoint.

    ``table_side`` is the side of the square table of positions; ``levels`` are the blocks after which rows
    are taken for deepstack, rising, each with its own merger.
    """

    table_side: int
    levels: tuple[int, ...]

    @property
    def row_width(self) -> int:
        """Width of an output row: the merged row, then one of the same width for each level."""
        return self.out_width * (1 + len(self.levels))


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
    """The patches of a cell to one row; a deepstack merger norms them joined, the last one each alone."""

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


class Qwen3VisionTower(nn.Module):
    """Packed patches to rows, both in reading order of the merge cells."""

    def __init__(self, shape: Qwen3VisionShape, activation: Activation) -> None:
        super().__init__()
        self.levels = shape.levels
        self.patch_embed = PatchProjection(shape, bias=True)
        self.pos_embed = nn.Embedding(shape.table_side**2, shape.width)
        self.blocks = nn.ModuleList(
            VisionBlock(shape, norm=layer_norm, feed_forward=FeedForward(shape, activation))
            for _ in range(shape.layers)
        )
        self.merger = PatchMerger(shape, norm_joined=False)
        self.deepstack_merger_list = nn.ModuleList(PatchMerger(shape, norm_joined=True) for _ in shape.levels)

    def positions(self, corners: Tensor, shares: Tensor) -> Tensor:
        """Learned positions between the table's places, in float32: [rows, width].

        ``corners`` int64 [rows, 4] are places in the table, ``shares`` float32 [rows, 4] how much of each.
        """
        learned: Tensor = self.pos_embed(corners[:, 0]).float() * shares[:, :1]
        for corner in range(1, corners.shape[1]):
            learned = learned + self.pos_embed(corners[:, corner]).float() * shares[:, corner, None]
        return learned

    def forward(
        self, patches: Tensor, corners: Tensor, shares: Tensor, turn: Turn, frames: Segments
    ) -> Tensor:
        """[rows, patch values] to [cells, out_width * (1 + levels)]: the last merger's row comes first."""
        x = self.patch_embed(patches)
        x = x + self.positions(corners, shares).to(x.dtype)
        joined = []
        for index, block in enumerate(self.blocks):
            x = block(x, frames, turn)
            if index in self.levels:
                joined.append(self.deepstack_merger_list[self.levels.index(index)](x))
        return torch.cat([self.merger(x), *joined], dim=1)
