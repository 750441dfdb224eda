"""The last steps before a vision tower: upload, colour scale, frame padding and patches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


def send(host: Tensor, device: torch.device) -> Tensor:
    """Upload a host tensor. Work that is launched later on the same stream can use it."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColourScale:
    """``(level * rescale - mean) / std`` for red, green and blue."""

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


def normalise(images: Tensor, scale: ColourScale) -> Tensor:
    """uint8 [..., 3, H, W] to float32 of the same shape."""
    mean, std = _constants(scale, images.device)
    return (images.to(torch.float32) * scale.rescale - mean) / std


def pad_frames(frames: Tensor, multiple: int) -> Tensor:
    """Repeat the last frame of [F, ...] until F is a multiple of ``multiple``.

    Source: the published Qwen2-VL processors, which do so for images (one frame) and for odd videos.
    """
    missing = -frames.shape[0] % multiple
    return torch.cat([frames, frames[-1:].expand(missing, *frames.shape[1:])]) if missing else frames


def patchify(frames: Tensor, *, patch: int, merge: int, temporal: int) -> Tensor:
    """[F, 3, H, W] to [F/temporal * H/patch * W/patch, 3 * temporal * patch * patch].

    F is a multiple of ``temporal``, H and W of ``patch * merge``. Rows run over time, then over merge cells
    in reading order, then over the patches of a cell in reading order, so the rows that the merger joins are
    adjacent. The values of a row run over colour, time, y, x. Source: transformers' Qwen2-VL processors.
    """
    steps, rows, columns = (
        frames.shape[0] // temporal,
        frames.shape[2] // (patch * merge),
        frames.shape[3] // (patch * merge),
    )
    parts = frames.view(steps, temporal, 3, rows, merge, patch, columns, merge, patch)
    ordered = parts.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(steps * rows * columns * merge * merge, 3 * temporal * patch * patch)
