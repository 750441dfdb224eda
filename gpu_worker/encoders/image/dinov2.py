"""Family ``dinov2``: images to the class row and the patch rows of a DINOv2 vision transformer.

An image gives 257 rows at the published sizes: the class row first, then 16 x 16 patches in reading order
(transformers' ``last_hidden_state``). A video gives these rows for each of its frames (``image.encoder``).
Learned positions are interpolated once, at load, for the grid that the preprocessor's crop gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.attention import attend_whole
from gpu_worker.encoders.checkpoint import load_weights
from gpu_worker.encoders.image.encoder import ImageEncoder, ImageRows, image_card
from gpu_worker.encoders.loading import LoadRequest, colour_scale, require_value, required_int
from gpu_worker.preprocess.fit import CropRule, crop_rule
from gpu_worker.preprocess.tensors import IMAGENET_SCALE

PREPROCESS_REVISION = "dinov2-1"

_DEFAULT_CROP = CropRule(shortest_edge=256, crop=(224, 224))


@dataclass(frozen=True, kw_only=True, slots=True)
class Dinov2Shape:
    """Sizes of one checkpoint. ``trained_grid`` is the patches a side that the positions were learned for."""

    width: int
    layers: int
    heads: int
    hidden: int
    patch: int
    trained_grid: int
    epsilon: float
    gated: bool
    qkv_bias: bool


def _shape(request: LoadRequest) -> Dinov2Shape:
    config = request.checkpoint.config
    require_value(config, "hidden_act", supported="gelu")
    width, patch = required_int(config, "hidden_size"), required_int(config, "patch_size")
    return Dinov2Shape(
        width=width,
        layers=required_int(config, "num_hidden_layers"),
        heads=required_int(config, "num_attention_heads"),
        hidden=int(width * config.get("mlp_ratio", 4)),
        patch=patch,
        trained_grid=required_int(config, "image_size") // patch,
        epsilon=float(config.get("layer_norm_eps", 1e-6)),
        gated=bool(config.get("use_swiglu_ffn", False)),
        qkv_bias=bool(config.get("qkv_bias", True)),
    )


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
    """Full self-attention inside one image. Names: ``attention.query``, ``output.dense``."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention = Projections(shape)
        self.output = OutputProjection(shape)

    def forward(self, x: Tensor) -> Tensor:
        """[images, rows, width] to the same."""
        own = self.attention
        mixed = attend_whole(own.query(x), own.key(x), own.value(x), self.heads)
        return self.output.dense(mixed)  # type: ignore[no-any-return]


class PlainFeedForward(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.hidden)
        self.fc2 = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
    """SwiGLU of the giant checkpoint: one matrix (``weights_in``) gives gate and value."""

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
        """[images, rows, width] to the same."""
        x = x + self.layer_scale1(self.attention(self.norm1(x)))
        return x + self.layer_scale2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class PatchProjection(nn.Module):
    """One matrix over the pixels of a patch, under the checkpoints' name."""

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
        """Positions for another grid, [1, 1 + h * w, width].

        Bicubic in float32, as transformers' ``interpolate_pos_encoding``; the class row stays as it is.
        """
        learned = self.position_embeddings
        side = int((learned.shape[1] - 1) ** 0.5)
        if grid == (side, side):
            return learned
        plane = learned[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2).float()
        plane = F.interpolate(plane, size=grid, mode="bicubic", align_corners=False)
        return torch.cat([learned[:, :1], plane.flatten(2).transpose(1, 2).to(learned.dtype)], dim=1)

    def forward(self, images: Tensor, positions: Tensor) -> Tensor:
        """[images, 3, H, W] to [images, 1 + patches, width]."""
        patches = self.patch_embeddings.projection(images).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(images.shape[0], -1, -1)
        return torch.cat([first, patches], dim=1) + positions


class BlockStack(nn.Module):
    """The blocks, under the name that the checkpoints use."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Dinov2Block(shape) for _ in range(shape.layers))


class Dinov2Tower(nn.Module):
    """Normalised images to rows."""

    def __init__(self, shape: Dinov2Shape) -> None:
        super().__init__()
        self.embeddings = PatchEmbedding(shape)
        self.encoder = BlockStack(shape)
        self.layernorm = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def forward(self, images: Tensor, positions: Tensor) -> Tensor:
        """[images, 3, H, W] and the positions of their grid to [images, 1 + patches, width]."""
        x = self.embeddings(images, positions)
        for block in self.encoder.layer:
            x = block(x)
        return torch.as_tensor(self.layernorm(x))


def load(request: LoadRequest) -> ImageEncoder:
    """Read a DINOv2 checkpoint (``Dinov2Model``, or the backbone of a classifier).

    Raises:
        SettingsError: the checkpoint cannot be used.
    """
    shape = _shape(request)
    rule = crop_rule(request.checkpoint.image_processor, _DEFAULT_CROP)
    if any(side % shape.patch for side in rule.crop):
        raise SettingsError(
            f"preprocessor_config.json: crop_size {rule.crop} is no multiple of {shape.patch}"
        )
    with torch.device("meta"):
        tower = Dinov2Tower(shape)
    weights = load_weights(
        tower,
        request.checkpoint,
        prefixes=("", "dinov2."),
        device=request.device,
        dtype=request.dtype,
        unused=("embeddings.mask_token",),
    )
    grid = (rule.crop[0] // shape.patch, rule.crop[1] // shape.patch)
    card = image_card(request, weights, family="dinov2", revision=PREPROCESS_REVISION, width=shape.width)
    return ImageEncoder(
        card,
        partial(tower, positions=tower.embeddings.positions_for(grid)),
        rows=ImageRows(grid=grid, prefix=1),
        rule=rule,
        scale=colour_scale(request.checkpoint.image_processor, IMAGENET_SCALE),
    )
