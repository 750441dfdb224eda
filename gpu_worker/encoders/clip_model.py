"""CLIP's vision tower as a module with the checkpoints' own tensor names (``pre_layrnorm`` is theirs)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpu_worker.encoders.vit_parts import PatchRows, VitBlocks, VitShape


class ClipEmbedding(PatchRows):
    """The class row in front of the patches."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__(shape, prefix=1, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(shape.width))

    def forward(self, pictures: Tensor) -> Tensor:
        """[pictures, 3, H, W] to [pictures, 1 + patches, width]."""
        first = self.class_embedding.expand(pictures.shape[0], 1, -1)
        return torch.cat([first, self.patch_rows(pictures)], dim=1) + self.position_embedding.weight


class ClipTower(nn.Module):
    """Normalised pictures to the rows after the last block.

    The checkpoints' last norm is only for the class row that the contrastive projection takes, so it is not
    part of the tower.
    """

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.embeddings = ClipEmbedding(shape)
        self.pre_layrnorm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.encoder = VitBlocks(shape)

    def forward(self, pictures: Tensor) -> Tensor:
        """[pictures, 3, H, W] to [pictures, 1 + patches, width]."""
        return torch.as_tensor(self.encoder(self.pre_layrnorm(self.embeddings(pictures))))
