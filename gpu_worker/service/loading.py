"""Loading the encoders of the config file onto the one device of this worker."""

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


#: Packed rows of the largest graph. Forwards of more are bound by arithmetic and not by launches: a replay
#: saves nothing there, and captures of such sizes take gigabytes and seconds.
_MOST_ROWS = 16_384


def choose_runner(settings: Settings, device: str, backend: GraphBackend | None = None) -> Runner:
    """Graphs on CUDA, unless ``EPD_CUDA_GRAPHS`` says ``off``; eager elsewhere.

    A ``backend`` that is given takes the place of the device's own, and captures on any device.

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
    """Make sure that the devices have CUDA graphs where the settings require them; needs no loaded encoder.

    Raises:
        SettingsError: graphs are required, and a device has none; it is named.
    """
    if settings.cuda_graphs != "required":
        return
    for device in devices:
        if device.type != "cuda":
            raise SettingsError(f"EPD_CUDA_GRAPHS=required: device {device} has no CUDA graphs")


def graph_plan(settings: Settings) -> GraphPlan:
    """What is to be captured: every size that a batch of these settings may have, within the bounds."""
    return GraphPlan(
        most_items=settings.max_batch_items,
        most_rows=min(settings.max_batch_cost, _MOST_ROWS),
        bounds=CaptureBounds(memory=settings.graph_memory_bytes, graphs=settings.max_graphs),
        required=settings.cuda_graphs == "required",
    )
