"""What a family's ``load`` is given, and how it reads numbers from a checkpoint's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.preprocess.normalise import ColourScale


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadRequest:
    """One encoder to load: its configured name, checkpoint, device and dtype."""

    name: str
    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype


def required_int(config: Mapping[str, Any], key: str) -> int:
    """A whole number that a checkpoint must state; raises ``SettingsError`` naming the key."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"checkpoint: {key} is {value!r}, not a whole number")
    return value


def require_value(config: Mapping[str, Any], key: str, *, supported: object) -> None:
    """Refuse a checkpoint whose ``key`` asks for something that the family's module does not do."""
    if config.get(key, supported) != supported:
        raise SettingsError(f"checkpoint: {key} is {config[key]!r}; only {supported!r} is supported")


def colour_scale(processor: Mapping[str, Any], default: ColourScale) -> ColourScale:
    """Mean, standard deviation and rescale factor of a preprocessor file."""
    require_value(processor, "do_rescale", supported=True)
    require_value(processor, "do_normalize", supported=True)
    return ColourScale(
        mean=tuple(processor.get("image_mean", default.mean)),
        std=tuple(processor.get("image_std", default.std)),
        rescale=float(processor.get("rescale_factor", default.rescale)),
    )
