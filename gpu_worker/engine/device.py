"""What the engine asks of a device: upload, download, stamps of time. One implementation for each kind."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class DeviceLost(RuntimeError):
    """The device can run nothing more in this process; only a new process helps."""


class DeviceHung(DeviceLost):
    """Work on the device does not end."""


class Stamp(Protocol):
    """A point in the device's order of work."""

    def seconds_until(self, later: Stamp) -> float:
        """Seconds of device time up to a later stamp; both have been reached."""
        ...


class Device(Protocol):
    """One device.

    ``upload`` is for the staging thread, ``download`` for the completion thread, and all else for the
    thread that owns the device.
    """

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        ...

    def upload(self, host: Tensor) -> Tensor:
        """Start to copy a host tensor to the device; ``await_uploads`` makes it safe to use."""
        ...

    def await_uploads(self, uploaded: list[Tensor]) -> None:
        """Have the device's later work start after these uploads, without blocking the host."""
        ...

    def stamp(self) -> Stamp:
        """Mark this point in the device's order of work."""
        ...

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """Copy rows to host memory after ``ready``; returns when they are there. Contiguous."""
        ...

    def free_cache(self) -> None:
        """Give cached memory back after an allocation failed."""
        ...


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on the device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        # torch's CPU allocator raises a plain RuntimeError.
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def is_device_lost(error: BaseException) -> bool:
    """Whether the error leaves the device's context unusable, as an illegal access does on CUDA."""
    if isinstance(error, DeviceLost):
        return True
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)
