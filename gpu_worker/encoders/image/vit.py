"""What the vision towers of CLIP and SigLIP share, with the checkpoints' own tensor names.

Source: Radford et al. 2021, "CLIP", and Zhai et al. 2023, "SigLIP": a ViT of pre-norm blocks, learned
positions, no layer scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.attention import Activation, attend_whole, read_activation
from gpu_worker.encoders.checkpoint import Checkpoint, LoadedWeights, load_weights
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.preprocess.fit import FitRule


@dataclass(frozen=True, kw_only=True, slots=True)
class VitShape:
    """Sizes of one checkpoint; ``image`` and ``patch`` are the sides of both in pixels."""

    width: int
    layers: int
    heads: int
    hidden: int
    image: int
    patch: int
    epsilon: float
    activation: Activation

    @property
    def side(self) -> int:
        """Whole patches a side; pixels past the last one are ignored."""
        return self.image // self.patch


class VitAttention(nn.Module):
    """Full self-attention inside one image."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = nn.Linear(shape.width, shape.width)
        self.k_proj = nn.Linear(shape.width, shape.width)
        self.v_proj = nn.Linear(shape.width, shape.width)
        self.out_proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[images, rows, width] to the same."""
        mixed = attend_whole(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads)
        return self.out_proj(mixed)  # type: ignore[no-any-return]


class VitFeedForward(nn.Module):
    """Two layers with the checkpoint's activation between them."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.hidden)
        self.fc2 = nn.Linear(shape.hidden, shape.width)
        self.activation = shape.activation

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return self.fc2(self.activation(self.fc1(x)))  # type: ignore[no-any-return]


class VitBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.self_attn = VitAttention(shape)
        self.layer_norm2 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.mlp = VitFeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        """[images, rows, width] to the same."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))  # type: ignore[no-any-return]


class VitBlocks(nn.Module):
    """All blocks in order, under the name that the checkpoints use."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VitBlock(shape) for _ in range(shape.layers))

    def forward(self, x: Tensor) -> Tensor:
        """[images, rows, width] to the same."""
        for block in self.layers:
            x = block(x)
        return x


class PatchRows(nn.Module):
    """Patches to rows, with learned positions. ``prefix`` counts the rows in front of the patches."""

    def __init__(self, shape: VitShape, *, prefix: int, bias: bool) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(
            3, shape.width, kernel_size=shape.patch, stride=shape.patch, bias=bias
        )
        self.position_embedding = nn.Embedding(shape.side**2 + prefix, shape.width)

    def patch_rows(self, images: Tensor) -> Tensor:
        """[images, 3, H, W] to [images, patches, width], in reading order, without positions."""
        return self.patch_embedding(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


def read_vit_shape(checkpoint: Checkpoint, *, published: Mapping[str, Any]) -> VitShape:
    """Sizes from ``vision_config``, or from the top level in the file of a single vision tower.

    Files state only what differs from the first published checkpoint, whose values are ``published``.
    Raises ``SettingsError`` for what the modules cannot do.
    """
    section = checkpoint.config.get("vision_config", checkpoint.config)
    if not isinstance(section, Mapping):
        raise SettingsError(f"{checkpoint.folder}/config.json: vision_config is not an object")
    config = {**published, **section}
    require_value(config, "num_channels", supported=3)
    width, heads = required_int(config, "hidden_size"), required_int(config, "num_attention_heads")
    if width % heads:
        raise SettingsError(f"checkpoint: hidden_size {width} does not divide by num_attention_heads {heads}")
    return VitShape(
        width=width,
        layers=required_int(config, "num_hidden_layers"),
        heads=heads,
        hidden=required_int(config, "intermediate_size"),
        image=required_int(config, "image_size"),
        patch=required_int(config, "patch_size"),
        epsilon=float(config["layer_norm_eps"]),
        activation=read_activation(config, str(published["hidden_act"])),
    )


def require_fit(rule: FitRule, shape: VitShape) -> None:
    """Refuse a preprocessor file for another size than the one that the positions were learned for."""
    if rule.fitted != (shape.image, shape.image):
        raise SettingsError(
            f"preprocessor_config.json: size or crop_size gives {rule.fitted}, not image_size {shape.image}"
        )


def load_vit(request: LoadRequest, tower: nn.Module, *, unused: Collection[str]) -> LoadedWeights:
    """Fill a tower built on ``meta`` from the checkpoint of a whole model or of a single vision tower."""
    return load_weights(
        tower,
        request.checkpoint,
        prefixes=("vision_model.", ""),
        device=request.device,
        dtype=request.dtype,
        unused=("embeddings.position_ids", *unused),
    )
