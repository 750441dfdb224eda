"""Whisper's audio encoder as a module with the checkpoints' own tensor names.

Source: Radford et al. 2022, section 2.2: two convolutions (the second halves the frames), fixed positions,
pre-norm transformer blocks, a last norm. The key projection has no bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from gpu_worker.encoders.segments import Segments, attend, attend_whole


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
    """Full self-attention inside a window: whole windows of a stack, or packed rows cut by segments."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = nn.Linear(shape.width, shape.width)
        self.k_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.width)
        self.out_proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, segments: Segments | None = None) -> Tensor:
        """[windows, rows, width], or with segments [rows, width], to the same."""
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if segments is None:
            return self.out_proj(attend_whole(query, key, value, self.heads))  # type: ignore[no-any-return]
        split = [rows.unflatten(-1, (self.heads, -1)) for rows in (query, key, value)]
        return self.out_proj(attend(split[0], split[1], split[2], segments))  # type: ignore[no-any-return]


class WhisperBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.self_attn = WhisperAttention(shape)
        self.self_attn_layer_norm = nn.LayerNorm(shape.width)
        self.fc1 = nn.Linear(shape.width, shape.hidden)
        self.fc2 = nn.Linear(shape.hidden, shape.width)
        self.final_layer_norm = nn.LayerNorm(shape.width)

    def forward(self, x: Tensor, segments: Segments | None = None) -> Tensor:
        """[windows, rows, width], or with segments [rows, width], to the same."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), segments)
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))  # type: ignore[no-any-return]


class SpeechTower(nn.Module):
    """The parts of Whisper's encoder under their names, and its way from mel frames to rows."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(shape.mel_bins, shape.width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(shape.width, shape.width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(shape.positions, shape.width)
        self.layers = nn.ModuleList(WhisperBlock(shape) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.width)

    def embed(self, mel: Tensor) -> Tensor:
        """[windows, bins, 2 * positions] to [windows, positions, width]."""
        rows = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        return rows + self.embed_positions.weight


class WhisperTower(SpeechTower):
    """Log-mel windows to rows, all of each window."""

    def forward(self, mel: Tensor) -> Tensor:
        """[windows, bins, 2 * positions] to [windows, positions, width]."""
        x = self.embed(mel)
        for block in self.layers:
            x = block(x)
        return torch.as_tensor(self.layer_norm(x))
