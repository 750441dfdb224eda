"""Where the benchmark runs: the device, its dtype, and how forwards are captured on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.gpu.meter import CpuMeter, CudaMeter, Meter
from bench.gpu.twin_graphs import TwinBackend
from gpu_worker.engine.graphs.backend import GraphBackend
from gpu_worker.engine.graphs.cuda_graph import CudaBackend


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One device. ``self_test``: everything is tiny, and no figure says anything of a GPU."""

    device: torch.device
    name: str
    dtype: torch.dtype
    make_backend: Callable[[], GraphBackend]
    meter: Meter
    self_test: bool


def cuda_target(device: torch.device) -> Target:
    """A CUDA device in bfloat16, as a worker runs on it; the first where none is numbered."""
    device = torch.device("cuda", device.index or 0)
    torch.cuda.set_device(device)
    return Target(
        device=device,
        name=torch.cuda.get_device_name(device),
        dtype=torch.bfloat16,
        make_backend=lambda: CudaBackend(device),
        meter=CudaMeter(device),
        self_test=False,
    )


def self_test_target() -> Target:
    """The processor with the twin of captured forwards: shows that the benchmark runs, and no more."""
    return Target(
        device=torch.device("cpu"),
        name="the processor",
        dtype=torch.float32,
        make_backend=TwinBackend,
        meter=CpuMeter(enough=0.01),
        self_test=True,
    )
