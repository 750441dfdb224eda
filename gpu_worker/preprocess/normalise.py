"""From 8-bit levels to the zero-centred values that a vision tower was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gpu_worker.preprocess.sending import send


@dataclass(frozen=True, kw_only=True, slots=True)
class ColourScale:
    """``(level * rescale - mean) / std`` for each of red, green and blue."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: float = 1.0 / 255.0


IMAGENET_SCALE = ColourScale(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CLIP_SCALE = ColourScale(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))

#: Levels to -1 .. 1: SigLIP and Qwen3-VL.
HALF_SCALE = ColourScale(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@lru_cache(maxsize=32)
def _constants(scale: ColourScale, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation on a device: float32 [3, 1, 1] each."""
    mean, std = (send(torch.tensor(values).view(3, 1, 1), device) for values in (scale.mean, scale.std))
    return mean, std


def normalise(pictures: Tensor, scale: ColourScale) -> Tensor:
    """uint8 [..., 3, H, W] to float32 of the same shape."""
    mean, std = _constants(scale, pictures.device)
    return (pictures.to(torch.float32) * scale.rescale - mean) / std
