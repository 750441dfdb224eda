"""Cut pictures into the flat patches of the Qwen-VL vision towers."""

from __future__ import annotations

import torch
from torch import Tensor


def pad_frames(frames: Tensor, multiple: int) -> Tensor:
    """Repeat the last frame of [F, ...] until F divides by ``multiple``.

    Source: the published Qwen2-VL processors, which do so for images (one frame) and odd videos alike.
    """
    missing = -frames.shape[0] % multiple
    return torch.cat([frames, frames[-1:].expand(missing, *frames.shape[1:])]) if missing else frames


def patchify(frames: Tensor, *, patch: int, merge: int, temporal: int) -> Tensor:
    """[F, 3, H, W] to [F/temporal * H/patch * W/patch, 3 * temporal * patch * patch].

    F divides by ``temporal``, H and W by ``patch * merge``. Rows run over time, then over merge cells in
    reading order, then over the patches of a cell in reading order, so that the rows that the merger joins
    lie side by side. Values of a row run over colour, time, y, x.
    """
    steps, rows, columns = (
        frames.shape[0] // temporal,
        frames.shape[2] // (patch * merge),
        frames.shape[3] // (patch * merge),
    )
    parts = frames.view(steps, temporal, 3, rows, merge, patch, columns, merge, patch)
    ordered = parts.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(steps * rows * columns * merge * merge, 3 * temporal * patch * patch)
