"""SigLIP's vision tower as a module with the checkpoints' own tensor names: no class row, a last norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpu_worker.encoders.vit_parts import PatchRows, VitBlocks, VitShape


class SiglipEmbedding(PatchRows):
    """The patches alone."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__(shape, prefix=0, bias=True)

    def forward(self, pictures: Tensor) -> Tensor:
        """[pictures, 3, H, W] to [pictures, patches, width]."""
        return self.patch_rows(pictures) + self.position_embedding.weight


class SiglipTower(nn.Module):
    """Normalised pictures to rows. The checkpoints' pooling head is not part of it."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.embeddings = SiglipEmbedding(shape)
        self.encoder = VitBlocks(shape)
        self.post_layernorm = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def forward(self, pictures: Tensor) -> Tensor:
        """[pictures, 3, H, W] to [pictures, patches, width]."""
        return torch.as_tensor(self.post_layernorm(self.encoder(self.embeddings(pictures))))
