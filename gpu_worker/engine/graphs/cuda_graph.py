"""CUDA graphs of torch behind the backend's protocol. All graphs of a process share one memory pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.encoders.base import GraphForm

#: CUDA's own numbers for what is not allowed in a capture; the context stays usable.
#: Source: CUDA Runtime API, cudaErrorStreamCaptureUnsupported (900) to cudaErrorStreamCaptureWrongThread.
_CAPTURE_REFUSALS = range(900, 909)

#: A forward over static buffers. It takes nothing: what it reads is where it was when it was captured.
Call = Callable[[], Tensor]


class Capture(Protocol):
    """A captured forward."""

    def replay(self) -> Tensor:
        """Run it again on what the static buffers hold now.

        The result is memory of the pool: the next replay of any capture may write to it.
        """
        ...

    def release(self) -> None:
        """Give its memory back; it must not be replayed again."""
        ...


class GraphBackend(Protocol):
    """Captures on one device. Only the thread that owns the device calls it."""

    def capture(self, call: Call) -> Capture:
        """Capture a call in the backend's one pool. Raises whatever the call or the device raises."""
        ...

    def memory(self) -> int:
        """Bytes that this process holds on the device now, measured."""
        ...

    def seconds(self, call: Call) -> float:
        """Seconds that a call takes when it is called again and again."""
        ...

    def lengths(self, offsets: Tensor, longest: int) -> tuple[int, ...]:
        """Segment lengths for a forward over static offsets, as far as the device's kernels read them."""
        ...

    def takes(self, form: GraphForm, dtype: torch.dtype) -> bool:
        """Whether forwards of this form and dtype can be captured here."""
        ...


def is_capture_refusal(error: BaseException) -> bool:
    """Whether the device refused to capture something, and can still run it eagerly.

    The number is looked for first; every text of these errors speaks of capturing.
    """
    if not isinstance(error, torch.AcceleratorError):
        return False
    return getattr(error, "error_code", None) in _CAPTURE_REFUSALS or "captur" in str(error)


#: Runs before a capture: libraries choose kernels and allocate workspaces in the first ones.
_WARM_UPS = 2
_TIMED_RUNS = 5


class CudaCapture:
    """One captured graph and its result."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph = graph
        self._result = result

    def replay(self) -> Tensor:
        """Launch the graph on the current stream; the result is the pool's memory."""
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
        # One for all captures: libraries keep a workspace for each stream that they were used on.
        self._side = torch.cuda.Stream(device)

    def capture(self, call: Call) -> CudaCapture:
        """Warm the call up on the capture's stream, as torch asks for, then capture it."""
        # torch.cuda.graph takes the thread's current device, which is the first one until somebody says so.
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            # Leaves this thread on its own stream even where the end of a failed capture raises as well.
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
            # The allocator may take the old pool for one that is still recorded, and refuse the next capture.
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return CudaCapture(graph, result)

    def memory(self) -> int:
        """Bytes that torch holds of the device; unused cached blocks are given back before."""
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def seconds(self, call: Call) -> float:
        """Device seconds a run, over a few runs in a row. Only at warm-up: it waits for the device."""
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
        """Only the longest is read on the host: the kernel reads the offsets from the device."""
        return (longest,)

    def takes(self, form: GraphForm, dtype: torch.dtype) -> bool:
        """Packed segments need the variable-length kernel, which is for half precision alone."""
        return not form.segments or dtype in (torch.bfloat16, torch.float16)
