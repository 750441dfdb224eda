"""Family ``qwen2_5_omni_audio``: audio to rows for the Qwen2.5-Omni thinker.

An item is one input of the thinker, however long it is. Chunks of 2 s attend only to themselves, and rows are
averaged in pairs over the whole item: ``((n - 1) // 2 + 1 - 2) // 2 + 1`` rows for n feature frames.
``audio_feature_lengths`` is that one n, and engines count rows and positions from it. The audio track of a
video gives the same rows, and Decode interleaves them with the frames by ``second_per_grid_ts``.

The published processor drops everything after 300 s. Here nothing is cut: longer audio gives the features of
the same extractor with ``truncation=False``, after it is filled up to whole frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.checkpoint import Checkpoint, load_weights
from gpu_worker.encoders.loading import LoadRequest, required_int
from gpu_worker.encoders.speech.packed import PackedRows, PackedSpeechEncoder, run_packed
from gpu_worker.encoders.speech.tower import (
    WhisperBlock,
    WhisperShape,
    read_mel_rule,
    read_speech_shape,
    speech_card,
)
from gpu_worker.preprocess.mel import chunked_log_mel

PREPROCESS_REVISION = "qwen2_5_omni_audio-1"

#: Seconds that the published extractor pads to, unless the file has another length.
_PADDED_SECONDS = 300


def _audio_config(checkpoint: Checkpoint) -> Mapping[str, object]:
    thinker = checkpoint.config.get("thinker_config", checkpoint.config)
    config = thinker.get("audio_config") if isinstance(thinker, Mapping) else None
    if not isinstance(config, Mapping):
        raise SettingsError(f"{checkpoint.folder}/config.json: no audio_config")
    return config


def _chunk_shape(shape: WhisperShape, chunk: int) -> WhisperShape:
    """The same sizes with the rows of one chunk. Raises ``SettingsError`` for an impossible chunk."""
    if not 2 <= chunk <= 2 * shape.positions:
        raise SettingsError(f"checkpoint: n_window is {chunk // 2}; 1 to {shape.positions} is supported")
    if shape.width % 2:
        raise SettingsError(f"checkpoint: d_model is {shape.width}, not an even number")
    return replace(shape, positions=chunk // 2)


def wave_positions(rows: int, width: int) -> Tensor:
    """float32 [rows, width]: sines, then cosines, of waves from 1 to 10000 rows long over 2 pi.

    Source: Vaswani et al. 2017, section 3.5; sines and cosines are two halves, as in Whisper.
    """
    half = width // 2
    step = torch.log(torch.tensor(10000.0, dtype=torch.float64)) / (half - 1)
    rates = torch.exp(-step.float() * torch.arange(half, dtype=torch.float32))
    angles = torch.arange(rows, dtype=torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class OmniAudioTower(nn.Module):
    """Chunks of log-mel to rows of the thinker's width, with the checkpoints' own tensor names.

    Source: Xu et al. 2025, "Qwen2.5-Omni Technical Report", section 2.2: Whisper-large-v3's encoder with
    attention inside chunks of 2 s. Checkpoints do not hold ``positions``; the loader fills them in.
    """

    positions: Tensor

    def __init__(self, shape: WhisperShape, out_width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(shape.mel_bins, shape.width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(shape.width, shape.width, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positions", torch.empty(shape.positions, shape.width), persistent=False)
        self.layers = nn.ModuleList(WhisperBlock(shape) for _ in range(shape.layers))
        self.ln_post = nn.LayerNorm(shape.width)
        self.proj = nn.Linear(shape.width, out_width)

    def forward(self, mel: Tensor, rows: PackedRows) -> Tensor:
        """[chunks, bins, frames] to [tokens, out_width]."""
        pooled = run_packed(self._embed(mel, rows.frames), self.layers, rows)
        return torch.as_tensor(self.proj(self.ln_post(pooled)))

    def _embed(self, mel: Tensor, frames: Tensor) -> Tensor:
        """After the last valid frame of a chunk both convolutions see zeros, as after a whole chunk."""
        valid = torch.arange(mel.shape[2], device=mel.device) < frames[:, None]
        first = F.gelu(self.conv1(mel)) * valid[:, None, :]
        return F.gelu(self.conv2(first)).transpose(1, 2) + self.positions


class OmniAudioEncoder(PackedSpeechEncoder):
    """``Encoder`` for the audio tower of Qwen2.5-Omni checkpoints."""

    joined = True

    def mel(self, audios: Sequence[Tensor]) -> Tensor:
        """Log-mel of chunks, with zeros after the end of the audio; one floor for the whole item."""
        return chunked_log_mel(audios, self.rule, self.window)


def load(request: LoadRequest) -> OmniAudioEncoder:
    """Read the audio tower of a Qwen2.5-Omni checkpoint, whole or thinker only.

    Raises:
        SettingsError: the checkpoint cannot be used.
    """
    config = _audio_config(request.checkpoint)
    chunk, out_width = 2 * required_int(config, "n_window"), required_int(config, "output_dim")
    shape = _chunk_shape(read_speech_shape(config), chunk)
    extractor = request.checkpoint.feature_extractor
    rule = read_mel_rule(extractor, bins=shape.mel_bins, frames=None, seconds=_PADDED_SECONDS)
    with torch.device("meta"):
        tower = OmniAudioTower(shape, out_width)
    weights = load_weights(
        tower,
        request.checkpoint,
        prefixes=("thinker.audio_tower.", "audio_tower."),
        device=request.device,
        dtype=request.dtype,
        # The language model writes the tokens that open and close the audio.
        unused=("audio_bos_eos_token.weight",),
    )
    tower.positions = wave_positions(shape.positions, shape.width).to(request.device, request.dtype)
    card = speech_card(
        request, weights, rule, family="qwen2_5_omni_audio", revision=PREPROCESS_REVISION, hidden=out_width
    )
    return OmniAudioEncoder(card, tower, rule, chunk)
