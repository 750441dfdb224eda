"""Whisper's audio encoder as a module with the checkpoints' own tensor names.

Source: Radford et al. 2022, section 2.2: two convolutions (the second halves the frames), fixed positions,
pre-norm transformer blocks, a last norm. The key projection has no bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from gpu_worker.encoders.segments import attend_whole


@dataclass(frozen=True, kw_only=True, slots=True)
class WhisperShape:
    """Sizes of one checkpoint; ``positions`` is rows of output a window."""

    width: int
    layers: int
    heads: int
    hidden: int
    mel_bins: int
    positions: int


class WhisperAttention(nn.Module):
    """Full self-attention inside one window."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = nn.Linear(shape.width, shape.width)
        self.k_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.width)
        self.out_proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[windows, rows, width] to the same."""
        mixed = attend_whole(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads)
        return self.out_proj(mixed)  # type: ignore[no-any-return]


class WhisperBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.self_attn = WhisperAttention(shape)
        self.self_attn_layer_norm = nn.LayerNorm(shape.width)
        self.fc1 = nn.Linear(shape.width, shape.hidden)
        self.fc2 = nn.Linear(shape.hidden, shape.width)
        self.final_layer_norm = nn.LayerNorm(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[windows, rows, width] to the same."""
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))  # type: ignore[no-any-return]


class WhisperTower(nn.Module):
    """Log-mel windows to rows."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(shape.mel_bins, shape.width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(shape.width, shape.width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(shape.positions, shape.width)
        self.layers = nn.ModuleList(WhisperBlock(shape) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.width)

    def forward(self, mel: Tensor) -> Tensor:
        """[windows, bins, 2 * positions] to [windows, positions, width]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.embed_positions.weight
        for block in self.layers:
            x = block(x)
        return torch.as_tensor(self.layer_norm(x))
