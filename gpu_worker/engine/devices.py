"""The device of a name."""

from __future__ import annotations

import torch

from gpu_worker.engine.cpu_device import CpuDevice
from gpu_worker.engine.cuda_streams import CudaStreams
from gpu_worker.engine.device import Device
from gpu_worker.engine.stream_device import StreamDevice

#: Bytes of the ring that uploads go through: a full batch of pictures of 1080p, and more than one in flight.
STAGING_BYTES = 256 << 20


def open_device(name: str, staging_bytes: int = STAGING_BYTES) -> Device:
    """The device of a torch device name: ``cpu``, ``cuda`` or ``cuda:1``. A CPU needs no staging."""
    device = torch.device(name)
    return CpuDevice() if device.type == "cpu" else StreamDevice(CudaStreams(device), staging_bytes)
