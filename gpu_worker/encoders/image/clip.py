"""Family ``clip``: images to the class row and the patch rows of a CLIP vision tower.

Rows are transformers' ``last_hidden_state``: the class row first, then the patches in reading order (50 rows
at 224 pixels in patches of 32). They come from the last block, without the last norm, which CLIP applies to
the pooled class row only. Decode engines project the patch rows. For the contrastive embedding, apply
``post_layernorm`` and ``visual_projection`` to the first row. A video gives these rows for each of its frames
(``image.encoder``).
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
from gpu_worker.encoders.loading import LoadRequest, colour_scale
from gpu_worker.preprocess.fit import CropRule, crop_rule
from gpu_worker.preprocess.tensors import CLIP_SCALE

PREPROCESS_REVISION = "clip-1"

#: ``vision_config`` of openai/clip-vit-base-patch32.
_PUBLISHED: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}


class ClipEmbedding(PatchRows):
    """The class row in front of the patches."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__(shape, prefix=1, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(shape.width))

    def forward(self, images: Tensor) -> Tensor:
        """[images, 3, H, W] to [images, 1 + patches, width]."""
        first = self.class_embedding.expand(images.shape[0], 1, -1)
        return torch.cat([first, self.patch_rows(images)], dim=1) + self.position_embedding.weight


class ClipTower(nn.Module):
    """Normalised images to the rows after the last block.

    The checkpoints' last norm is only for the class row of the contrastive projection, so it is not part of
    the tower.
    """

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.embeddings = ClipEmbedding(shape)
        self.pre_layrnorm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.encoder = VitBlocks(shape)

    def forward(self, images: Tensor) -> Tensor:
        """[images, 3, H, W] to [images, 1 + patches, width]."""
        return torch.as_tensor(self.encoder(self.pre_layrnorm(self.embeddings(images))))


def load(request: LoadRequest) -> ImageEncoder:
    """Read the vision half of a CLIP checkpoint, or a vision tower that was saved alone.

    Raises:
        SettingsError: the checkpoint cannot be used.
    """
    checkpoint = request.checkpoint
    shape = read_vit_shape(checkpoint, published=_PUBLISHED)
    default = CropRule(shortest_edge=shape.image, crop=(shape.image, shape.image))
    rule = crop_rule(checkpoint.image_processor, default)
    require_fit(rule, shape)
    with torch.device("meta"):
        tower = ClipTower(shape)
    weights = load_vit(request, tower, unused=("post_layernorm.weight", "post_layernorm.bias"))
    card = image_card(request, weights, family="clip", revision=PREPROCESS_REVISION, width=shape.width)
    return ImageEncoder(
        card,
        tower,
        rows=ImageRows(grid=(shape.side, shape.side), prefix=1),
        rule=rule,
        scale=colour_scale(checkpoint.image_processor, CLIP_SCALE),
    )
