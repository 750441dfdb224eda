"""How this worker runs its forwards: replayed from CUDA graphs or eagerly, by the settings and the device."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from epd.contracts.errors import SettingsError
from epd.settings import Settings
from gpu_worker.engine.graphs.backend import GraphBackend
from gpu_worker.engine.graphs.cuda_graph import CudaBackend
from gpu_worker.engine.graphs.graph_runner import GraphPlan, GraphRunner
from gpu_worker.engine.graphs.graph_set import CaptureBounds
from gpu_worker.engine.runner import EagerRunner, Runner

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
