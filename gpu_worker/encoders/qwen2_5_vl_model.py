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

from gpu_worker.encoders.segments import Segments, attend


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenVisionShape:
    """Sizes of one checkpoint. ``window`` is merge cells a side; ``full`` are the blocks without windows."""

    width: int
    layers: int
    heads: int
    hidden: int
    out_width: int
    patch: int
    temporal: int
    merge: int
    window: int
    full: frozenset[int]

    @property
    def patch_values(self) -> int:
        """Values of one flat patch."""
        return 3 * self.temporal * self.patch * self.patch


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Rotary angles of each row, float32 [rows, 1, head_dim / 2]: first by height, then by width."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate [rows, heads, head_dim] in float32 and give it back in its own dtype."""
        first, second = x.float().chunk(2, dim=-1)
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(turned, dim=-1).to(x.dtype)


def rotary_turn(positions: Tensor, head_dim: int) -> Turn:
    """Angles for int [rows, 2] positions (y, x); theta is 10000."""
    steps = torch.arange(0, head_dim // 2, 2, dtype=torch.float32, device=positions.device)
    rates = 1.0 / (10000.0 ** (steps / (head_dim // 2)))
    angles = (positions[:, :, None].float() * rates).flatten(1)[:, None, :]
    return Turn(cos=angles.cos(), sin=angles.sin())


class PatchProjection(nn.Module):
    """``proj.weight`` is stored as a 3-D convolution, and is one matrix over flat patches."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        size = (shape.temporal, shape.patch, shape.patch)
        self.proj = nn.Conv3d(3, shape.width, kernel_size=size, stride=size, bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """[rows, patch values] to [rows, width]."""
        return F.linear(patches, self.proj.weight.flatten(1))


class VisionAttention(nn.Module):
    """Self-attention inside segments, with rotary positions."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, segments: Segments, turn: Turn) -> Tensor:
        """[rows, width] to the same."""
        query, key, value = self.qkv(x).view(x.shape[0], 3, self.heads, -1).unbind(1)
        mixed = attend(turn(query), turn(key), value, segments)
        return self.proj(mixed)  # type: ignore[no-any-return]


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


class VisionBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(shape.width, eps=1e-6)
        self.norm2 = nn.RMSNorm(shape.width, eps=1e-6)
        self.attn = VisionAttention(shape)
        self.mlp = GatedFeedForward(shape)

    def forward(self, x: Tensor, segments: Segments, turn: Turn) -> Tensor:
        """[rows, width] to the same."""
        x = x + self.attn(self.norm1(x), segments, turn)
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class PatchMerger(nn.Module):
    """Joins the patches of a cell, which lie side by side, to one row of the language model's width."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.joined = shape.width * shape.merge**2
        self.ln_q = nn.RMSNorm(shape.width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(self.joined, self.joined), nn.GELU(), nn.Linear(self.joined, shape.out_width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[cells * merge^2, width] to [cells, out_width]."""
        return self.mlp(self.ln_q(x).view(-1, self.joined))  # type: ignore[no-any-return]


class QwenVisionTower(nn.Module):
    """Packed patches in window order to rows in reading order."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.full = shape.full
        self.patch_embed = PatchProjection(shape)
        self.blocks = nn.ModuleList(VisionBlock(shape) for _ in range(shape.layers))
        self.merger = PatchMerger(shape)

    def forward(
        self, patches: Tensor, turn: Turn, frames: Segments, windows: Segments, restore: Tensor
    ) -> Tensor:
        """[rows, patch values] to [cells, out_width]."""
        x = self.patch_embed(patches)
        for index, block in enumerate(self.blocks):
            x = block(x, frames if index in self.full else windows, turn)
        return torch.as_tensor(self.merger(x)).index_select(0, restore)
