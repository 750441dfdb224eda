"""DINOv2's vision transformer as a module with the checkpoints' own tensor names.

Source: Oquab et al. 2023, "DINOv2", and Dosovitskiy et al. 2020 for the ViT: square patches, a class row in
front, learned positions, pre-norm blocks whose branches are scaled by a learned vector, a last norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from gpu_worker.encoders.segments import attend_whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Dinov2Shape:
    """Sizes of one checkpoint; ``trained_grid`` is patches a side that the positions were learned for."""

    width: int
    layers: int
    heads: int
    hidden: int
    patch: int
    trained_grid: int
    epsilon: float
    gated: bool
    qkv_bias: bool


class Projections(nn.Module):
    """The three input projections of one attention."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.query = nn.Linear(shape.width, shape.width, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.width, shape.width, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.width, shape.width, bias=shape.qkv_bias)


class OutputProjection(nn.Module):
    """The output projection of one attention."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.width, shape.width)


class Dinov2Attention(nn.Module):
    """Full self-attention inside one picture. Names: ``attention.query``, ``output.dense``."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention = Projections(shape)
        self.output = OutputProjection(shape)

    def forward(self, x: Tensor) -> Tensor:
        """[pictures, rows, width] to the same."""
        own = self.attention
        mixed = attend_whole(own.query(x), own.key(x), own.value(x), self.heads)
        return self.output.dense(mixed)  # type: ignore[no-any-return]


class PlainFeedForward(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.hidden)
        self.fc2 = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
    """SwiGLU of the giant checkpoint: gate and value come from one matrix (``weights_in``)."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        hidden = (int(shape.hidden * 2 / 3) + 7) // 8 * 8
        self.weights_in = nn.Linear(shape.width, 2 * hidden)
        self.weights_out = nn.Linear(hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        gate, value = self.weights_in(x).chunk(2, dim=-1)
        return self.weights_out(F.silu(gate) * value)  # type: ignore[no-any-return]


class LayerScale(nn.Module):
    """A learned factor for each column."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lambda1 = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return x * self.lambda1


class Dinov2Block(nn.Module):
    """Pre-norm attention and feed-forward, each scaled, with residuals."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.attention = Dinov2Attention(shape)
        self.layer_scale1 = LayerScale(shape.width)
        self.norm2 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.mlp = GatedFeedForward(shape) if shape.gated else PlainFeedForward(shape)
        self.layer_scale2 = LayerScale(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[pictures, rows, width] to the same."""
        x = x + self.layer_scale1(self.attention(self.norm1(x)))
        return x + self.layer_scale2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class PatchProjection(nn.Module):
    """One matrix over the pixels of a patch."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, shape.width, kernel_size=shape.patch, stride=shape.patch)


class PatchEmbedding(nn.Module):
    """Class row, positions and the projection of patches (``patch_embeddings.projection``)."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        rows = shape.trained_grid**2 + 1
        self.position_embeddings = nn.Parameter(torch.zeros(1, rows, shape.width))
        self.patch_embeddings = PatchProjection(shape)

    def positions_for(self, grid: tuple[int, int]) -> Tensor:
        """Positions for another grid [1, 1 + h * w, width]: bicubic in float32, the class row as it is."""
        learned = self.position_embeddings
        side = int((learned.shape[1] - 1) ** 0.5)
        if grid == (side, side):
            return learned
        plane = learned[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2).float()
        plane = F.interpolate(plane, size=grid, mode="bicubic", align_corners=False)
        return torch.cat([learned[:, :1], plane.flatten(2).transpose(1, 2).to(learned.dtype)], dim=1)

    def forward(self, pictures: Tensor, positions: Tensor) -> Tensor:
        """[pictures, 3, H, W] to [pictures, 1 + patches, width]."""
        patches = self.patch_embeddings.projection(pictures).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(pictures.shape[0], -1, -1)
        return torch.cat([first, patches], dim=1) + positions


class BlockStack(nn.Module):
    """The blocks, under the name that the checkpoints use."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Dinov2Block(shape) for _ in range(shape.layers))


class Dinov2Tower(nn.Module):
    """Normalised pictures to rows."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.embeddings = PatchEmbedding(shape)
        self.encoder = BlockStack(shape)
        self.layernorm = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def forward(self, pictures: Tensor, positions: Tensor) -> Tensor:
        """[pictures, 3, H, W] and positions of their grid to [pictures, 1 + patches, width]."""
        x = self.embeddings(pictures, positions)
        for block in self.encoder.layer:
            x = block(x)
        return torch.as_tensor(self.layernorm(x))
