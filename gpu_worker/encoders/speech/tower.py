"""Whisper's audio encoder, with the checkpoints' own tensor names, and how its configuration is read.

Source: Radford et al. 2022, section 2.2: two convolutions (the second halves the frames), fixed positions,
pre-norm transformer blocks, a last norm. The key projection has no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.embedding import AudioRules, EncoderCard
from epd.contracts.errors import Internal, SettingsError, UnsupportedMedia
from epd.contracts.media import Modality, RawAudio, RawMedia
from gpu_worker.encoders.attention import Segments, attend, attend_whole
from gpu_worker.encoders.checkpoint import LoadedWeights
from gpu_worker.encoders.loading import LoadRequest, dtype_name, require_value, required_int
from gpu_worker.preprocess.mel import MelRule


@dataclass(frozen=True, kw_only=True, slots=True)
class WhisperShape:
    """Sizes of one checkpoint. ``positions`` is the output rows of one window."""

    width: int
    layers: int
    heads: int
    hidden: int
    mel_bins: int
    positions: int


class WhisperAttention(nn.Module):
    """Full self-attention inside each window, of a stack of whole windows or of packed rows."""

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
    """The parts of Whisper's encoder under their names, and the convolutions from mel frames to rows."""

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
    """Log-mel windows to all rows of each window."""

    def forward(self, mel: Tensor) -> Tensor:
        """[windows, bins, 2 * positions] to [windows, positions, width]."""
        x = self.embed(mel)
        for block in self.layers:
            x = block(x)
        return torch.as_tensor(self.layer_norm(x))


def read_speech_shape(config: Mapping[str, Any]) -> WhisperShape:
    """Sizes of an encoder like Whisper's. Raises ``SettingsError`` for what the module cannot do."""
    require_value(config, "activation_function", supported="gelu")
    require_value(config, "scale_embedding", supported=False)
    shape = WhisperShape(
        width=required_int(config, "d_model"),
        layers=required_int(config, "encoder_layers"),
        heads=required_int(config, "encoder_attention_heads"),
        hidden=required_int(config, "encoder_ffn_dim"),
        mel_bins=required_int(config, "num_mel_bins"),
        positions=int(config.get("max_source_positions", 1500)),
    )
    if shape.heads < 1 or shape.width % shape.heads:
        raise SettingsError(f"checkpoint: d_model {shape.width} is no multiple of {shape.heads} heads")
    return shape


def read_mel_rule(extractor: Mapping[str, Any], *, bins: int, frames: int | None, seconds: int) -> MelRule:
    """The mel rule of a ``WhisperFeatureExtractor`` file; missing keys have the defaults of that class.

    Args:
        extractor: the content of the file.
        bins: mel bins that the tower takes; the file must have the same number.
        frames: feature frames that the tower takes at once; the file must have the same length. ``None`` if
            the tower takes any length; then the file's ``chunk_length`` counts.
        seconds: ``chunk_length`` of a file that has none.

    Raises:
        SettingsError: the file asks for other features.
    """
    require_value(extractor, "feature_extractor_type", supported="WhisperFeatureExtractor")
    require_value(extractor, "feature_size", supported=bins)
    require_value(extractor, "dither", supported=0.0)
    require_value(extractor, "padding_value", supported=0.0)
    require_value(extractor, "do_normalize", supported=False)
    rate, hop = int(extractor.get("sampling_rate", 16000)), int(extractor.get("hop_length", 160))
    if frames is not None:
        require_value(extractor, "chunk_length", supported=frames * hop / rate)
        window = frames * hop
    else:
        window = int(extractor.get("chunk_length", seconds)) * rate
    n_fft = int(extractor.get("n_fft", 400))
    return MelRule(bins=bins, sample_rate=rate, n_fft=n_fft, hop=hop, window=window)


def require_audio(raw: RawMedia, *, encoder: str, sample_rate: int) -> RawAudio:
    """The item as audio. Raises ``UnsupportedMedia`` for other media, ``Internal`` for another rate in Hz."""
    if not isinstance(raw, RawAudio):
        raise UnsupportedMedia(f"encoder {encoder} takes audio, not {raw.kind}")
    if raw.sample_rate != sample_rate:
        raise Internal(f"audio at {raw.sample_rate} Hz, encoder wants {sample_rate} Hz")
    return raw


def speech_card(
    request: LoadRequest, weights: LoadedWeights, rule: MelRule, *, family: str, revision: str, hidden: int
) -> EncoderCard:
    """The card of an encoder that takes only audio, without options."""
    return EncoderCard(
        name=request.name,
        family=family,
        modalities=(Modality.AUDIO,),
        hidden=hidden,
        dtype=dtype_name(request.dtype),
        weights_digest=weights.digest,
        preprocess_revision=revision,
        audio=AudioRules(sample_rate=rule.sample_rate),
        parameters=weights.parameters,
        device=str(request.device),
    )
