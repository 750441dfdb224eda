"""What the engine asks of a device: upload, download, stamps of time. One implementation for each kind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
        """Start to copy a host tensor to the device; ``await_uploads`` makes it safe to use.

        Raises what ``is_out_of_memory`` knows where the device has no room for it.
        """
        ...

    def await_uploads(self, uploaded: Sequence[Tensor]) -> None:
        """Have the device's later work start after these uploads, without blocking the host."""
        ...

    def stamp(self) -> Stamp:
        """Mark this point in the device's order of work."""
        ...

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """Copy rows to host memory after ``ready``; returns when they are there. Contiguous.

        Raises what ``is_out_of_memory`` knows where the host has no room for them.
        """
        ...

    def free_cache(self) -> None:
        """Give cached memory back after an allocation failed. For any thread."""
        ...

    def staging_bytes(self) -> int:
        """Bytes of host memory that copies to and from the device go through, measured. For any thread."""
        ...


#: cudaErrorMemoryAllocation: what allocating pinned memory raises. The context stays usable.
#: Source: CUDA Runtime API, cudaError_t.
_ALLOCATION_FAILED = 2
#: torch's CPU allocator, cuBLAS and cuDNN raise a plain RuntimeError.
_NO_MEMORY_TEXTS = ("can't allocate memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on the device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        code = getattr(error, "error_code", None)
        return code == _ALLOCATION_FAILED or "out of memory" in str(error)
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY_TEXTS)


def is_device_lost(error: BaseException) -> bool:
    """Whether the error leaves the device's context unusable, as an illegal access does on CUDA."""
    if isinstance(error, DeviceLost):
        return True
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


@dataclass(frozen=True, slots=True)
class CpuStamp:
    """Seconds of the monotonic clock."""

    at: float

    def seconds_until(self, later: Stamp) -> float:
        """Wall seconds between two stamps of this device."""
        assert isinstance(later, CpuStamp)
        return later.at - self.at


class CpuDevice:
    """A device without memory of its own."""

    kind = "cpu"

    def upload(self, host: Tensor) -> Tensor:
        """The tensor itself."""
        return host

    def await_uploads(self, uploaded: Sequence[Tensor]) -> None:
        """Nothing to wait for."""

    def stamp(self) -> Stamp:
        """Now."""
        return CpuStamp(time.perf_counter())

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """The rows themselves, made contiguous."""
        return rows.contiguous()

    def free_cache(self) -> None:
        """The allocator keeps nothing back."""

    def staging_bytes(self) -> int:
        """None: media are read where they lie."""
        return 0


@runtime_checkable
class Mark(Stamp, Protocol):
    """A point in a stream's order of work."""

    def reached(self) -> bool:
        """Whether all work before it is done. Never waits."""
        ...

    def wait(self) -> None:
        """Block the calling thread until it is reached. For the completion thread alone."""
        ...


class Streams(Protocol):
    """One device with memory of its own."""

    @property
    def kind(self) -> str:
        """``cuda``, or the twin's name."""
        ...

    def pinned(self, nbytes: int) -> Tensor:
        """Page-locked host memory, uint8 [nbytes]. Raises what ``is_out_of_memory`` knows."""
        ...

    def pinned_bytes(self) -> int:
        """Bytes of page-locked host memory that this process holds, measured."""
        ...

    def target(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Device memory for an upload. Raises what ``is_out_of_memory`` knows."""
        ...

    def copy_in(self, target: Tensor, source: Tensor) -> Mark:
        """Copy host memory in, on the first stream. A pinned source must stay as it is until the mark."""
        ...

    def compute_after(self, marks: Sequence[Mark], uploaded: Sequence[Tensor]) -> None:
        """Have later compute wait, on the device, for uploads that it will read."""
        ...

    def mark(self) -> Mark:
        """Mark this point of the compute stream."""
        ...

    def copy_out(self, source: Tensor, target: Tensor, after: Mark) -> Mark:
        """Copy device memory to the host in the last stream, once ``after`` is reached."""
        ...

    def free_cache(self) -> None:
        """Give cached memory back after an allocation failed."""
        ...
