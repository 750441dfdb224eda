"""What the vision towers of the Qwen-VL families share, with the checkpoints' own tensor names.

All three cut pairs of frames into patches, keep the rows of many items packed, attend inside segments, and
rotate queries and keys by their position in the frame. They differ in norms, feed-forward, windows and
mergers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from gpu_worker.encoders.attention import Segments, attend

#: Rotary base of every published Qwen-VL vision tower.
ROTARY_BASE = 10000.0

#: Makes a feed-forward or a norm of a width.
PartMaker = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionSizes:
    """Sizes of one tower. The merger joins ``merge`` x ``merge`` patches to one row of ``out_width``."""

    width: int
    layers: int
    heads: int
    hidden: int
    out_width: int
    patch: int
    temporal: int
    merge: int

    @property
    def patch_values(self) -> int:
        """Values of one flat patch."""
        return 3 * self.temporal * self.patch * self.patch

    @property
    def joined(self) -> int:
        """Width of the concatenated patches of a merge cell."""
        return self.width * self.merge**2


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotation:
    """Rotary embedding of each row, float32 [rows, 1, head_dim / 2]: angles by height, then by width."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate [rows, heads, head_dim] in float32, and return it in its own dtype."""
        first, second = x.float().chunk(2, dim=-1)
        rotated = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(rotated, dim=-1).to(x.dtype)


def rotation_at(positions: Tensor, head_dim: int) -> Rotation:
    """Rotation of rows at int [rows, 2] positions (y, x)."""
    steps = torch.arange(0, head_dim // 2, 2, dtype=torch.float32, device=positions.device)
    rates = 1.0 / (ROTARY_BASE ** (steps / (head_dim // 2)))
    angles = (positions[:, :, None].float() * rates).flatten(1)[:, None, :]
    return Rotation(cos=angles.cos(), sin=angles.sin())


class PatchProjection(nn.Module):
    """One matrix over flat patches; ``proj.weight`` is stored as that of a 3-D convolution."""

    def __init__(self, sizes: VisionSizes, *, bias: bool = False) -> None:
        super().__init__()
        kernel = (sizes.temporal, sizes.patch, sizes.patch)
        self.proj = nn.Conv3d(3, sizes.width, kernel_size=kernel, stride=kernel, bias=bias)

    def forward(self, patches: Tensor) -> Tensor:
        """[rows, patch values] to [rows, width]."""
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class VisionAttention(nn.Module):
    """Self-attention inside segments, with rotary positions."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor, segments: Segments, rotation: Rotation) -> Tensor:
        """[rows, width] to the same."""
        query, key, value = self.qkv(x).view(x.shape[0], 3, self.heads, -1).unbind(1)
        mixed = attend(rotation(query), rotation(key), value, segments)
        return self.proj(mixed)  # type: ignore[no-any-return]


class VisionBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, sizes: VisionSizes, *, norm: PartMaker, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norm1 = norm(sizes.width)
        self.norm2 = norm(sizes.width)
        self.attn = VisionAttention(sizes)
        self.mlp = feed_forward

    def forward(self, x: Tensor, segments: Segments, rotation: Rotation) -> Tensor:
        """[rows, width] to the same."""
        x = x + self.attn(self.norm1(x), segments, rotation)
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


def rms_norm(width: int) -> nn.Module:
    """The RMS norm of Qwen2.5-VL's tower."""
    return nn.RMSNorm(width, eps=1e-6)


def layer_norm(width: int) -> nn.Module:
    """The layer norm of Qwen2-VL's and Qwen3-VL's towers."""
    return nn.LayerNorm(width, eps=1e-6)


class CellMerger(nn.Module):
    """The merger of Qwen2-VL and Qwen2.5-VL: the adjacent patches of a cell to one row."""

    def __init__(self, sizes: VisionSizes, *, norm: PartMaker) -> None:
        super().__init__()
        self.joined = sizes.joined
        self.ln_q = norm(sizes.width)
        self.mlp = nn.Sequential(
            nn.Linear(self.joined, self.joined), nn.GELU(), nn.Linear(self.joined, sizes.out_width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[cells * merge^2, width] to [cells, out_width]."""
        return self.mlp(self.ln_q(x).view(-1, self.joined))  # type: ignore[no-any-return]
