"""Loading the encoders of the config file onto the one device of this worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import torch

from epd.config import Config
from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.precision import resolve_device
from gpu_worker.encoders.registry import load_encoder

_log = logging.getLogger(__name__)


def load_fleet(config: Config, device: str | None = None) -> Mapping[str, Encoder]:
    """Load every encoder of the config; ``device`` takes the place of each encoder's own, where given.

    Raises:
        SettingsError: an encoder cannot be loaded, or two are on different devices; it is named.
    """
    fleet: dict[str, Encoder] = {}
    for name, entry in config.encoders.items():
        started = time.perf_counter()
        fleet[name] = load_encoder(
            name, entry if device is None else entry.model_copy(update={"device": device})
        )
        card = fleet[name].card
        _log.info("loaded %s (%s, %s on %s) in %.1f s", name, card.family, card.dtype, card.device,
                  time.perf_counter() - started)  # fmt: skip
    device_of(fleet)
    return fleet


def planned_devices(config: Config, device: str | None = None) -> list[torch.device]:
    """Where ``load_fleet`` would put each encoder; ``SettingsError``: a device is not there."""
    return [resolve_device(entry.device if device is None else device) for entry in config.encoders.values()]


def device_of(fleet: Mapping[str, Encoder]) -> str:
    """The device that all encoders share; raises ``SettingsError`` where they do not share one."""
    devices = {name: encoder.card.device for name, encoder in fleet.items()}
    if len(set(devices.values())) != 1:
        said = ", ".join(f"encoders.{name}.device={device}" for name, device in devices.items())
        raise SettingsError(f"a worker has one device, not several: {said}; use --devices to choose one")
    return next(iter(devices.values()))
