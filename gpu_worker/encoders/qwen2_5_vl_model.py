"""The vision tower of Qwen2.5-VL as a module with the checkpoints' own tensor names.

Source: Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1: patches of two frames, RMS norms, gated
feed-forward, rotary positions over height and width, window attention in all but a few blocks, and a merger
that joins 2 x 2 patches to one row. ``forward`` reads nothing back from the device and has no shape that
depends on data, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from gpu_worker.encoders.qwen_parts import (
    CellMerger,
    PatchProjection,
    Turn,
    VisionBlock,
    VisionSizes,
    rms_norm,
)
from gpu_worker.encoders.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenVisionShape(VisionSizes):
    """Sizes of one checkpoint. ``window`` is merge cells a side; ``full`` are the blocks without windows."""

    window: int
    full: frozenset[int]


class GatedFeedForward(nn.Module):
    """SwiGLU with biases."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden)
        self.up_proj = nn.Linear(shape.width, shape.hidden)
        self.down_proj = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class QwenVisionTower(nn.Module):
    """Packed patches in window order to rows in reading order."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.full = shape.full
        self.patch_embed = PatchProjection(shape)
        self.blocks = nn.ModuleList(
            VisionBlock(shape, norm=rms_norm, feed_forward=GatedFeedForward(shape))
            for _ in range(shape.layers)
        )
        self.merger = CellMerger(shape, norm=rms_norm)

    def forward(
        self, patches: Tensor, turn: Turn, frames: Segments, windows: Segments, restore: Tensor
    ) -> Tensor:
        """[rows, patch values] to [cells, out_width]."""
        x = self.patch_embed(patches)
        for index, block in enumerate(self.blocks):
            x = block(x, frames if index in self.full else windows, turn)
        return torch.as_tensor(self.merger(x)).index_select(0, restore)
