"""The argument of a family's ``load``, how it reads numbers from JSON, and the choice of device and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.preprocess.tensors import ColourScale

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadRequest:
    """One encoder to load: its configured name, checkpoint, device and dtype."""

    name: str
    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype


def required_int(config: Mapping[str, Any], key: str) -> int:
    """A whole number that the checkpoint must have. Raises ``SettingsError`` that names the key."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"checkpoint: {key} is {value!r}, not a whole number")
    return value


def require_value(config: Mapping[str, Any], key: str, *, supported: object) -> None:
    """Raise ``SettingsError`` if ``key`` is there with another value than the one that is supported."""
    if config.get(key, supported) != supported:
        raise SettingsError(f"checkpoint: {key} is {config[key]!r}; only {supported!r} is supported")


def colour_scale(processor: Mapping[str, Any], default: ColourScale) -> ColourScale:
    """Mean, standard deviation and rescale factor from a preprocessor file."""
    require_value(processor, "do_rescale", supported=True)
    require_value(processor, "do_normalize", supported=True)
    return ColourScale(
        mean=tuple(processor.get("image_mean", default.mean)),
        std=tuple(processor.get("image_std", default.std)),
        rescale=float(processor.get("rescale_factor", default.rescale)),
    )


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` to ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def resolve_device(name: str) -> torch.device:
    """The device of this name. ``auto`` is the first CUDA device if there is one, else the CPU.

    Raises:
        SettingsError: the machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of this name. ``auto`` is bfloat16 if the hardware multiplies it, else float32.

    On a CPU that takes AVX512-BF16: measured 1.5 to 3 times as fast as float32, and slower without it.
    float16 is slower than float32 on every CPU, so it is refused there.

    Raises:
        SettingsError: the name is unknown, or the device is too slow with it.
    """
    if name == "auto":
        return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32
    if name == "float16" and device.type == "cpu":
        raise SettingsError("dtype 'float16' on a CPU: slower than float32; use auto, bfloat16 or float32")
    if name not in _DTYPES:
        raise SettingsError(f"dtype {name!r}: not one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu.get_capabilities().get("avx512_bf16", False))
