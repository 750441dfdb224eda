"""The device of a name."""

from __future__ import annotations

import torch

from gpu_worker.engine.cpu_device import CpuDevice
from gpu_worker.engine.cuda_device import CudaDevice
from gpu_worker.engine.device import Device


def open_device(name: str) -> Device:
    """The device of a torch device name: ``cpu``, ``cuda`` or ``cuda:1``."""
    device = torch.device(name)
    return CpuDevice() if device.type == "cpu" else CudaDevice(device)
