"""Capture and replay of forwards as CUDA graphs. All graphs of a process share one memory pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.encoders.base import GraphForm

#: CUDA's error numbers for what a capture does not allow. The context stays usable.
#: Source: CUDA Runtime API, cudaErrorStreamCaptureUnsupported (900) to cudaErrorStreamCaptureWrongThread.
_CAPTURE_REFUSALS = range(900, 909)

#: Runs before a capture, in which libraries choose kernels and allocate workspaces.
_WARM_UPS = 2
_TIMED_RUNS = 5


#: A forward over static buffers. It takes no argument: each run reads the same memory.
Call = Callable[[], Tensor]


class Capture(Protocol):
    """A captured forward."""

    def replay(self) -> Tensor:
        """Run it again on the present content of the static buffers.

        The result is memory of the pool: the next replay of any capture may write to it.
        """
        ...

    def release(self) -> None:
        """Give its memory back. It must not be replayed again."""
        ...


class GraphBackend(Protocol):
    """Captures on one device. Only the thread that owns the device calls it."""

    def capture(self, call: Call) -> Capture:
        """Capture a call in the backend's pool. Raises whatever the call or the device raises."""
        ...

    def memory(self) -> int:
        """Measured bytes that this process holds on the device."""
        ...

    def seconds(self, call: Call) -> float:
        """Seconds of one call when it is repeated."""
        ...

    def lengths(self, offsets: Tensor, longest: int) -> tuple[int, ...]:
        """Segment lengths for a forward over static offsets; only those that the device's kernels need."""
        ...

    def takes(self, form: GraphForm, dtype: torch.dtype) -> bool:
        """Whether forwards of this form and dtype can be captured here."""
        ...


def is_capture_refusal(error: BaseException) -> bool:
    """Whether the device refused to capture something, and can still run it eagerly.

    The error's number decides if it has one; the texts of these errors all mention capturing.
    """
    if not isinstance(error, torch.AcceleratorError):
        return False
    return getattr(error, "error_code", None) in _CAPTURE_REFUSALS or "captur" in str(error)


class CudaCapture:
    """One captured graph and its result."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph = graph
        self._result = result

    def replay(self) -> Tensor:
        """Launch the graph on the current stream. The result is memory of the pool."""
        self._graph.replay()
        return self._result

    def release(self) -> None:
        """Give the graph's memory back to the pool."""
        self._graph.reset()
        del self._result


class CudaBackend:
    """Captures on one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # One stream for all captures, since libraries keep a workspace for each stream.
        self._side = torch.cuda.Stream(device)

    def capture(self, call: Call) -> CudaCapture:
        """Warm up the call on the capture's stream, as torch requires, then capture it."""
        # torch.cuda.graph uses the thread's current device, which is the first one by default.
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            # Puts this thread back on its own stream even if the end of a failed capture raises too.
            with torch.cuda.stream(current):
                self._side.wait_stream(current)
                with torch.cuda.stream(self._side):
                    for _ in range(_WARM_UPS):
                        call()
                captured = self._captured(call)
            current.wait_stream(self._side)
        return captured

    def _captured(self, call: Call) -> CudaCapture:
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread's copy may allocate while this one captures.
        context = torch.cuda.graph(
            graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
        )
        try:
            with context:
                result = call()
        except Exception:
            # The allocator may believe that the old pool is still recorded, and refuse the next capture.
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return CudaCapture(graph, result)

    def memory(self) -> int:
        """Bytes that torch has reserved, after unused cached blocks are given back."""
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def seconds(self, call: Call) -> float:
        """Device seconds of one run, the mean of a few. Only for warm-up: it waits for the device."""
        call()
        with torch.cuda.device(self._device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(_TIMED_RUNS):
                call()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / _TIMED_RUNS

    def lengths(self, offsets: Tensor, longest: int) -> tuple[int, ...]:
        """Only the longest: the kernel reads the offsets on the device."""
        return (longest,)

    def takes(self, form: GraphForm, dtype: torch.dtype) -> bool:
        """Packed segments need the variable-length kernel, which has only half precision."""
        return not form.segments or dtype in (torch.bfloat16, torch.float16)
