"""Family ``qwen2_audio``: audio to rows for the Qwen2-Audio language model.

The rows take the place of ``<|AUDIO|>``: audio tower, average of row pairs, projection to the language
model's width. Only valid rows are kept, ``((n - 1) // 2 + 1 - 2) // 2 + 1`` for n feature frames. Decode
needs nothing else: positions are plain, so it repeats the placeholder by that count.

Audio is cut into windows of 30 s, the length that the tower's positions allow; the published processor
silently drops the rest. ``audio_feature_lengths`` are the valid frames of each window. Each window is one
audio input of the model, and their rows follow one another. A last window of 20 ms or less gives no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.checkpoint import load_weights
from gpu_worker.encoders.loading import LoadRequest
from gpu_worker.encoders.speech.packed import PackedRows, PackedSpeechEncoder, run_packed
from gpu_worker.encoders.speech.tower import (
    SpeechTower,
    WhisperShape,
    read_mel_rule,
    read_speech_shape,
    speech_card,
)
from gpu_worker.preprocess.mel import log_mel, stack_windows

PREPROCESS_REVISION = "qwen2_audio-1"

#: Width of the language model if the file leaves it out, as published files do: the default of Qwen2.
_TEXT_WIDTH = 4096


class Projector(nn.Module):
    """One matrix with bias, under the checkpoints' name."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out_width)


class Qwen2AudioTower(nn.Module):
    """Log-mel windows to rows of the language model's width.

    Source: Chu et al. 2024, "Qwen2-Audio Technical Report", section 2: Whisper-large-v3's encoder with a
    pooling layer of stride two after it.
    """

    def __init__(self, shape: WhisperShape, out_width: int) -> None:
        super().__init__()
        self.audio_tower = SpeechTower(shape)
        self.multi_modal_projector = Projector(shape.width, out_width)

    def forward(self, mel: Tensor, rows: PackedRows) -> Tensor:
        """[windows, bins, frames] to [tokens, out_width]."""
        pooled = run_packed(self.audio_tower.embed(mel), self.audio_tower.layers, rows)
        projected = self.multi_modal_projector.linear(self.audio_tower.layer_norm(pooled))
        return torch.as_tensor(projected)


class Qwen2AudioEncoder(PackedSpeechEncoder):
    """``Encoder`` for the audio half of Qwen2-Audio checkpoints."""

    joined = False

    def mel(self, audios: Sequence[Tensor]) -> Tensor:
        """Log-mel of windows of 30 s, the last filled with silence; each window has its own floor."""
        return log_mel(stack_windows(audios, self.rule, torch.device(self.card.device)), self.rule)


def load(request: LoadRequest) -> Qwen2AudioEncoder:
    """Read tower and projector of a checkpoint. Raises ``SettingsError`` if they cannot be used."""
    checkpoint = request.checkpoint
    audio, text = (checkpoint.config.get(name) for name in ("audio_config", "text_config"))
    if not isinstance(audio, Mapping) or not isinstance(text, Mapping):
        raise SettingsError(f"{checkpoint.folder}/config.json: no audio_config or no text_config")
    shape = read_speech_shape(audio)
    frames = 2 * shape.positions
    rule = read_mel_rule(checkpoint.feature_extractor, bins=shape.mel_bins, frames=frames, seconds=30)
    out_width = int(text.get("hidden_size", _TEXT_WIDTH))
    with torch.device("meta"):
        tower = Qwen2AudioTower(shape, out_width)
    weights = load_weights(
        tower,
        checkpoint,
        prefixes=("", "model."),
        parts=("audio_tower.", "multi_modal_projector."),
        device=request.device,
        dtype=request.dtype,
    )
    card = speech_card(
        request, weights, rule, family="qwen2_audio", revision=PREPROCESS_REVISION, hidden=out_width
    )
    return Qwen2AudioEncoder(card, tower, rule, frames)
