"""From a family's name to its loader. A family is one file with a ``load(request) -> Encoder``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from epd.config import EncoderConfig
from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.checkpoint import locate_checkpoint
from gpu_worker.encoders.loading import LoadRequest, resolve_device, resolve_dtype

#: Module of each family, below ``gpu_worker.encoders``. It is imported when the family is asked for.
FAMILIES = {
    "clip": "image.clip",
    "dinov2": "image.dinov2",
    "qwen2_5_omni_audio": "speech.qwen2_5_omni_audio",
    "qwen2_5_vl": "qwen.qwen2_5_vl",
    "qwen2_audio": "speech.qwen2_audio",
    "qwen2_vl": "qwen.qwen2_vl",
    "qwen3_vl": "qwen.qwen3_vl",
    "siglip": "image.siglip",
    "whisper": "speech.whisper",
}


def load_encoder(name: str, config: EncoderConfig) -> Encoder:
    """Load one configured encoder onto its device. Raises ``SettingsError`` that says what is wrong."""
    if config.family not in FAMILIES:
        raise SettingsError(
            f"encoders.{name}.family: {config.family!r} is not known; known are {', '.join(sorted(FAMILIES))}"
        )
    device = resolve_device(config.device)
    request = LoadRequest(
        name=name,
        checkpoint=locate_checkpoint(name, config),
        device=device,
        dtype=resolve_dtype(config.dtype, device),
    )
    module = import_module(f"gpu_worker.encoders.{FAMILIES[config.family]}")
    return cast("Callable[[LoadRequest], Encoder]", module.load)(request)
