"""The vision tower of Qwen2-VL as a module with the checkpoints' own tensor names.

Source: Wang et al. 2024, "Qwen2-VL", section 2.1: patches of two frames, layer norms, a plain feed-forward,
rotary positions over height and width, every row attends to its whole frame, and a merger that joins 2 x 2
patches to one row. ``forward`` reads nothing back from the device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpu_worker.encoders.activations import Activation
from gpu_worker.encoders.qwen_parts import (
    CellMerger,
    PatchProjection,
    Turn,
    VisionBlock,
    VisionSizes,
    layer_norm,
)
from gpu_worker.encoders.segments import Segments


class FeedForward(nn.Module):
    """Two layers with the checkpoint's activation between."""

    def __init__(self, sizes: VisionSizes, activation: Activation) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.width, sizes.hidden)
        self.fc2 = nn.Linear(sizes.hidden, sizes.width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return self.fc2(self.activation(self.fc1(x)))  # type: ignore[no-any-return]


class Qwen2VisionTower(nn.Module):
    """Packed patches to rows, both in reading order of the merge cells."""

    def __init__(self, sizes: VisionSizes, activation: Activation) -> None:
        super().__init__()
        self.patch_embed = PatchProjection(sizes)
        self.blocks = nn.ModuleList(
            VisionBlock(sizes, norm=layer_norm, feed_forward=FeedForward(sizes, activation))
            for _ in range(sizes.layers)
        )
        self.merger = CellMerger(sizes, norm=layer_norm)

    def forward(self, patches: Tensor, turn: Turn, frames: Segments) -> Tensor:
        """[rows, patch values] to [cells, out_width]."""
        x = self.patch_embed(patches)
        for block in self.blocks:
            x = block(x, frames, turn)
        return torch.as_tensor(self.merger(x))
