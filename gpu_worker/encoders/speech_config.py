"""What the speech families do alike: read sizes and the feature extractor's numbers, take sound, say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epd.contracts.card import AudioRules, EncoderCard
from epd.contracts.errors import Internal, SettingsError, UnsupportedMedia
from epd.contracts.media import Modality, RawAudio, RawMedia
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.encoders.precision import dtype_name
from gpu_worker.encoders.weights import LoadedWeights
from gpu_worker.encoders.whisper_model import WhisperShape
from gpu_worker.preprocess.logmel import MelRule


def read_speech_shape(config: Mapping[str, Any]) -> WhisperShape:
    """Sizes of a Whisper-like encoder. Raises ``SettingsError`` for what the module cannot do."""
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
    """Numbers of a ``WhisperFeatureExtractor`` file; keys that it lacks are the class's own.

    ``frames`` is what the tower takes at once: the file must say the same length. Where it is None the
    tower takes any length, and the file's ``chunk_length`` (else ``seconds``) counts. Raises
    ``SettingsError`` for a file that asks for other features.
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


def require_sound(raw: RawMedia, *, encoder: str, sample_rate: int) -> RawAudio:
    """The item as sound. Raises ``UnsupportedMedia`` for pictures, ``Internal`` for another rate in Hz."""
    if not isinstance(raw, RawAudio):
        raise UnsupportedMedia(f"encoder {encoder} takes audio, not {raw.kind}")
    if raw.sample_rate != sample_rate:
        raise Internal(f"sound at {raw.sample_rate} Hz, encoder wants {sample_rate} Hz")
    return raw


def speech_card(
    request: LoadRequest, weights: LoadedWeights, rule: MelRule, *, family: str, revision: str, hidden: int
) -> EncoderCard:
    """The card of an encoder that takes sound alone, and no options with it."""
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
