"""What the engine needs of a device: uploads, downloads and time stamps; and the CPU as one.

``Streams`` is the part of a device with memory of its own that ``stream_device`` builds on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


class DeviceLost(RuntimeError):
    """The device can run nothing more in this process. Only a new process helps."""


class DeviceHung(DeviceLost):
    """Work on the device does not end."""


class Stamp(Protocol):
    """A point in the device's order of work."""

    def seconds_until(self, later: Stamp) -> float:
        """Seconds of device time until a later stamp. Both must have been reached."""
        ...


class Device(Protocol):
    """One device.

    The staging thread calls ``upload``, the completion thread ``download``, and the thread that owns the
    device everything else.
    """

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        ...

    def upload(self, host: Tensor) -> Tensor:
        """Start to copy a host tensor to the device. ``await_uploads`` makes the result safe to use.

        Raises an error for which ``is_out_of_memory`` is true if the device has no room.
        """
        ...

    def await_uploads(self, uploaded: Sequence[Tensor]) -> None:
        """Let later work of the device start after these uploads, without blocking the host."""
        ...

    def stamp(self) -> Stamp:
        """Mark this point in the device's order of work."""
        ...

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """Copy rows to contiguous host memory after ``ready``. Returns once they are there.

        Raises an error for which ``is_out_of_memory`` is true if the host has no room.
        """
        ...

    def free_cache(self) -> None:
        """Give cached memory back after an allocation failed. For any thread."""
        ...

    def staging_bytes(self) -> int:
        """Measured bytes of the host memory that copies to and from the device use. For any thread."""
        ...


#: cudaErrorMemoryAllocation, raised when pinned memory is allocated. The context stays usable.
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
        """Does nothing: there is nothing to wait for."""

    def stamp(self) -> Stamp:
        """The present time."""
        return CpuStamp(time.perf_counter())

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """The rows themselves, made contiguous."""
        return rows.contiguous()

    def free_cache(self) -> None:
        """Does nothing: the allocator has no cache."""

    def staging_bytes(self) -> int:
        """Always 0: media are read in place."""
        return 0


@runtime_checkable
class Mark(Stamp, Protocol):
    """A point in a stream's order of work."""

    def reached(self) -> bool:
        """Whether all work before it is done. Never waits."""
        ...

    def wait(self) -> None:
        """Block the calling thread until it is reached. Only for the completion thread."""
        ...


class Streams(Protocol):
    """The streams of one device with memory of its own: copies in, compute, copies out."""

    @property
    def kind(self) -> str:
        """``cuda``, or the twin's name."""
        ...

    def pinned(self, nbytes: int) -> Tensor:
        """Page-locked host memory, uint8 [nbytes]. Raises as ``Device.upload`` if there is none."""
        ...

    def pinned_bytes(self) -> int:
        """Measured bytes of page-locked host memory that this process holds."""
        ...

    def target(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Device memory for an upload. Raises as ``Device.upload`` if there is none."""
        ...

    def copy_in(self, target: Tensor, source: Tensor) -> Mark:
        """Copy host memory to the device, on the copy-in stream.

        A pinned source must not change until the mark is reached.
        """
        ...

    def compute_after(self, marks: Sequence[Mark], uploaded: Sequence[Tensor]) -> None:
        """Let later compute wait, on the device, for the uploads that it reads."""
        ...

    def mark(self) -> Mark:
        """Mark this point of the compute stream."""
        ...

    def copy_out(self, source: Tensor, target: Tensor, after: Mark) -> Mark:
        """Copy device memory to the host, on the copy-out stream, once ``after`` is reached."""
        ...

    def free_cache(self) -> None:
        """Give cached memory back after an allocation failed."""
        ...
