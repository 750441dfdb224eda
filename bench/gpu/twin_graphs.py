"""The CPU twin of CUDA graphs: the same aliasing of memory, so that its rules are tested without a GPU.

A capture keeps the call. A replay runs it on the present content of the static buffers, and writes the result
to the same place as the capture. All captures write to the start of one pool, as graphs of one pool may do.
"""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from torch import Tensor

from gpu_worker.encoders.base import GraphForm
from gpu_worker.engine.graphs.cuda_graph import Call


class TwinPool:
    """Memory that the results of all captures share, as large as the largest."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._owners: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the largest owner needs."""
        return max(self._owners.values(), default=0)

    def place(self, owner: object, result: Tensor) -> Tensor:
        """The result, copied to the start of the pool."""
        self._owners[id(owner)] = result.nbytes
        if result.nbytes > self._memory.nbytes:
            self._memory = torch.empty(result.nbytes, dtype=torch.uint8)
        held = self._memory[: result.nbytes].view(result.dtype).view(result.shape)
        return held.copy_(result)

    def forget(self, owner: object) -> None:
        """Note that the owner writes no more."""
        self._owners.pop(id(owner), None)


class TwinCapture:
    """A recorded call."""

    def __init__(self, call: Call, pool: TwinPool) -> None:
        self._call = call
        self._pool = pool
        pool.place(self, call())

    def replay(self) -> Tensor:
        """Run the call on the static buffers. The result is memory of the pool."""
        return self._pool.place(self, self._call())

    def release(self) -> None:
        """Give the memory back."""
        self._pool.forget(self)


class TwinBackend:
    """Captures on the CPU."""

    def __init__(self) -> None:
        self.pool = TwinPool()

    def capture(self, call: Call) -> TwinCapture:
        """Record a call after one run of it."""
        return TwinCapture(call, self.pool)

    def memory(self) -> int:
        """Bytes of the pool."""
        return self.pool.nbytes

    def seconds(self, call: Call) -> float:
        """Wall seconds of one run."""
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def lengths(self, offsets: Tensor, longest: int) -> tuple[int, ...]:
        """The present lengths in the offsets, as the kernels of a GPU read them.

        Raises ``ValueError`` if a segment is longer than at capture, where a GPU would leave rows out.
        """
        lengths = tuple(end - start for start, end in pairwise(offsets.tolist()) if end != start)
        if min(lengths, default=1) < 0 or max(lengths, default=0) > longest:
            raise ValueError(f"segments of {lengths} do not fit a capture of at most {longest}")
        return lengths

    def takes(self, form: GraphForm, dtype: torch.dtype) -> bool:
        """Always."""
        return True
