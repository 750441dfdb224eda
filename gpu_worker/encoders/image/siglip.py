"""Family ``siglip``: images to the patch rows of a SigLIP vision tower (also SigLIP 2 of a fixed size).

Rows are transformers' ``last_hidden_state``: the patches in reading order after the last norm, with no class
row (196 rows at 224 pixels in patches of 16). The pooling head is not applied. A video gives these rows for
each of its frames (``image.encoder``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.encoders.image.encoder import ImageEncoder, ImageRows, image_card
from gpu_worker.encoders.image.vit import (
    PatchRows,
    VitBlocks,
    VitShape,
    load_vit,
    read_vit_shape,
    require_fit,
)
from gpu_worker.encoders.loading import LoadRequest, colour_scale, require_value
from gpu_worker.preprocess.fit import StretchRule, stretch_rule
from gpu_worker.preprocess.tensors import HALF_SCALE

PREPROCESS_REVISION = "siglip-1"

#: ``vision_config`` of google/siglip-base-patch16-224.
_PUBLISHED: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}

#: Tensors of the pooling head, which the tower leaves out.
_POOLING_HEAD = (
    "head.probe",
    "head.attention.in_proj_weight",
    "head.attention.in_proj_bias",
    *(
        f"head.{layer}.{part}"
        for layer in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2")
        for part in ("weight", "bias")
    ),
)


class SiglipEmbedding(PatchRows):
    """Patches with their positions, no class row."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__(shape, prefix=0, bias=True)

    def forward(self, images: Tensor) -> Tensor:
        """[images, 3, H, W] to [images, patches, width]."""
        return self.patch_rows(images) + self.position_embedding.weight


class SiglipTower(nn.Module):
    """Normalised images to rows. The checkpoints' pooling head is not part of it."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.embeddings = SiglipEmbedding(shape)
        self.encoder = VitBlocks(shape)
        self.post_layernorm = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def forward(self, images: Tensor) -> Tensor:
        """[images, 3, H, W] to [images, patches, width]."""
        return torch.as_tensor(self.post_layernorm(self.encoder(self.embeddings(images))))


def load(request: LoadRequest) -> ImageEncoder:
    """Read the vision half of a SigLIP checkpoint, or a vision tower that was saved alone.

    Raises:
        SettingsError: the checkpoint cannot be used.
    """
    checkpoint = request.checkpoint
    # SigLIP 2 for images of any size (NaFlex) is another tower with the same tensor names.
    require_value(checkpoint.config.get("vision_config") or {}, "num_patches", supported=None)
    require_value(checkpoint.config, "num_patches", supported=None)
    shape = read_vit_shape(checkpoint, published=_PUBLISHED)
    rule = stretch_rule(checkpoint.image_processor, StretchRule(size=(shape.image, shape.image)))
    require_fit(rule, shape)
    with torch.device("meta"):
        tower = SiglipTower(shape)
    weights = load_vit(request, tower, unused=_POOLING_HEAD)
    card = image_card(request, weights, family="siglip", revision=PREPROCESS_REVISION, width=shape.width)
    return ImageEncoder(
        card,
        tower,
        rows=ImageRows(grid=(shape.side, shape.side), prefix=0),
        rule=rule,
        scale=colour_scale(checkpoint.image_processor, HALF_SCALE),
    )
