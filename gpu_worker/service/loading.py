"""What a worker makes of the config and the settings: encoders on its one device, and a runner for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

import torch

from epd.config import Config
from epd.contracts.errors import SettingsError
from epd.settings import Settings
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.loading import resolve_device
from gpu_worker.encoders.registry import load_encoder
from gpu_worker.engine.forward import EagerRunner, Runner
from gpu_worker.engine.graphs.cuda_graph import CudaBackend, GraphBackend
from gpu_worker.engine.graphs.graph_set import CaptureBounds
from gpu_worker.engine.graphs.runner import GraphPlan, GraphRunner

_log = logging.getLogger(__name__)

#: Packed rows of the largest graph. Larger forwards are bound by arithmetic and not by launches: a replay
#: saves nothing there, and capturing such sizes takes gigabytes and seconds.
_MAX_ROWS = 16_384


def load_encoders(config: Config, device: str | None = None) -> Mapping[str, Encoder]:
    """Load every encoder of the config, by name; ``device``, if given, replaces each encoder's own.

    Raises:
        SettingsError: an encoder cannot be loaded, or two are on different devices; it is named.
    """
    encoders: dict[str, Encoder] = {}
    for name, entry in config.encoders.items():
        started = time.perf_counter()
        placed = entry if device is None else entry.model_copy(update={"device": device})
        encoders[name] = load_encoder(name, placed)
        card = encoders[name].card
        _log.info("loaded %s (%s, %s on %s) in %.1f s", name, card.family, card.dtype, card.device,
                  time.perf_counter() - started)  # fmt: skip
    shared_device(encoders)
    return encoders


def planned_devices(config: Config, device: str | None = None) -> list[torch.device]:
    """The devices on which ``load_encoders`` would put the encoders.

    Raises:
        SettingsError: a device does not exist.
    """
    return [resolve_device(entry.device if device is None else device) for entry in config.encoders.values()]


def shared_device(encoders: Mapping[str, Encoder]) -> str:
    """The device that all encoders are on.

    Raises:
        SettingsError: they are on several.
    """
    devices = {name: encoder.card.device for name, encoder in encoders.items()}
    if len(set(devices.values())) != 1:
        listed = ", ".join(f"encoders.{name}.device={device}" for name, device in devices.items())
        raise SettingsError(f"a worker has one device, not several: {listed}; use --devices to choose one")
    return next(iter(devices.values()))


def choose_runner(settings: Settings, device: str, backend: GraphBackend | None = None) -> Runner:
    """Replay graphs on CUDA, unless ``EPD_CUDA_GRAPHS`` is ``off``; run eagerly on other devices.

    A given ``backend`` replaces the device's own and captures on any device.

    Raises:
        SettingsError: graphs are required, and this device has none.
    """
    if settings.cuda_graphs == "off":
        return EagerRunner()
    if backend is None and torch.device(device).type == "cuda":
        backend = CudaBackend(torch.device(device))
    if backend is not None:
        return GraphRunner(backend, graph_plan(settings))
    require_graphs(settings, [torch.device(device)])
    return EagerRunner()


def require_graphs(settings: Settings, devices: Iterable[torch.device]) -> None:
    """Check before anything is loaded that the devices have CUDA graphs, if the settings require them.

    Raises:
        SettingsError: graphs are required, and a device has none; it is named.
    """
    if settings.cuda_graphs != "required":
        return
    for device in devices:
        if device.type != "cuda":
            raise SettingsError(f"EPD_CUDA_GRAPHS=required: device {device} has no CUDA graphs")


def graph_plan(settings: Settings) -> GraphPlan:
    """What to capture: every size that a batch may have under these settings, within the bounds."""
    return GraphPlan(
        most_items=settings.max_batch_items,
        most_rows=min(settings.max_batch_cost, _MAX_ROWS),
        bounds=CaptureBounds(memory=settings.graph_memory_bytes, graphs=settings.max_graphs),
        required=settings.cuda_graphs == "required",
    )
