"""A CUDA device: copies in and out run on streams of their own, beside the compute of other batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.engine.device import Stamp


@dataclass(frozen=True, slots=True)
class CudaStamp:
    """An event in the compute stream."""

    event: torch.cuda.Event

    def seconds_until(self, later: Stamp) -> float:
        """Seconds of device time between two events that have been reached."""
        assert isinstance(later, CudaStamp)
        return float(self.event.elapsed_time(later.event)) / 1e3


class CudaDevice:
    """One CUDA device. Uploads and downloads go through pinned memory of torch's caching host allocator."""

    kind = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in = torch.cuda.Stream(device)
        self._out = torch.cuda.Stream(device)

    def upload(self, host: Tensor) -> Tensor:
        """Copy through pinned memory on the copy-in stream; returns before the copy is done."""
        pinned = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
        pinned.copy_(host)
        with torch.cuda.stream(self._in):
            return pinned.to(self._device, non_blocking=True)

    def await_uploads(self, uploaded: list[Tensor]) -> None:
        """Order the compute stream behind the copy-in stream, and tell the allocator of the second user."""
        compute = torch.cuda.current_stream(self._device)
        compute.wait_stream(self._in)
        for tensor in uploaded:
            tensor.record_stream(compute)

    def stamp(self) -> Stamp:
        """Record an event in the compute stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return CudaStamp(event)

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """Copy on the copy-out stream into pinned memory; the calling thread alone waits."""
        assert isinstance(ready, CudaStamp)
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        done = torch.cuda.Event()
        with torch.cuda.stream(self._out):
            self._out.wait_event(ready.event)
            host.copy_(rows, non_blocking=True)
            rows.record_stream(self._out)
            done.record(self._out)
        done.synchronize()
        return host

    def free_cache(self) -> None:
        """Return cached blocks to the driver."""
        torch.cuda.empty_cache()
