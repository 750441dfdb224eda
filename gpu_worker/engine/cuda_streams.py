"""Opens a device, and the streams of a CUDA one: copies run in parallel with the compute of other batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.engine.device import CpuDevice, Device, Mark, Stamp
from gpu_worker.engine.stream_device import StreamDevice

#: Bytes of the ring that uploads go through: more than a full batch of 1080p images.
STAGING_BYTES = 256 << 20


def open_device(name: str, staging_bytes: int = STAGING_BYTES) -> Device:
    """The device with this torch name, such as ``cpu``, ``cuda`` or ``cuda:1``. A CPU needs no staging."""
    device = torch.device(name)
    return CpuDevice() if device.type == "cpu" else StreamDevice(CudaStreams(device), staging_bytes)


@dataclass(frozen=True, slots=True)
class CudaMark:
    """An event in a stream."""

    event: torch.cuda.Event

    def reached(self) -> bool:
        """Ask the driver, without waiting."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Block until the event. It is the only wait for the device on an item's path."""
        self.event.synchronize()

    def seconds_until(self, later: Stamp) -> float:
        """Seconds of device time between two events that have been reached."""
        assert isinstance(later, CudaMark)
        return float(self.event.elapsed_time(later.event)) / 1e3


class CudaStreams:
    """Streams of one CUDA device. Compute is the current stream of the thread that owns the device."""

    kind = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in = torch.cuda.Stream(device)
        self._out = torch.cuda.Stream(device)

    def pinned(self, nbytes: int) -> Tensor:
        """From torch's caching host allocator. A freed block is reused once its copies are done."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def pinned_bytes(self) -> int:
        """Bytes that the host allocator owns, in use or cached."""
        return int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))

    def target(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Memory of the copy-in stream, so that its next use there has nothing to wait for."""
        with torch.cuda.stream(self._in):
            return torch.empty(shape, dtype=dtype, device=self._device)

    def copy_in(self, target: Tensor, source: Tensor) -> CudaMark:
        """Copy on the copy-in stream. The driver reads a source that is not pinned before this returns."""
        with torch.cuda.stream(self._in):
            target.copy_(source, non_blocking=True)
        return _marked(self._in, timed=False)

    def compute_after(self, marks: Sequence[Mark], uploaded: Sequence[Tensor]) -> None:
        """Let the compute stream wait for these copies, and register it as a user of the memory."""
        compute = torch.cuda.current_stream(self._device)
        for mark in marks:
            assert isinstance(mark, CudaMark)
            compute.wait_event(mark.event)
        for tensor in uploaded:
            tensor.record_stream(compute)

    def mark(self) -> CudaMark:
        """An event in the compute stream, with its time."""
        return _marked(torch.cuda.current_stream(self._device), timed=True)

    def copy_out(self, source: Tensor, target: Tensor, after: Mark) -> CudaMark:
        """Copy on the copy-out stream. The source's memory is not reused before the copy is done."""
        assert isinstance(after, CudaMark)
        self._out.wait_event(after.event)
        with torch.cuda.stream(self._out):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._out)
        return _marked(self._out, timed=False)

    def free_cache(self) -> None:
        """Return cached blocks to the driver."""
        torch.cuda.empty_cache()


def _marked(stream: torch.cuda.Stream, *, timed: bool) -> CudaMark:
    event = torch.cuda.Event(enable_timing=timed)
    event.record(stream)
    return CudaMark(event)
