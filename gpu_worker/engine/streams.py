"""What an asynchronous device gives the engine: three streams of work beside each other, and marks in them.

Work of one stream runs in order, in the background; the streams copy in, compute and copy out. No call here
waits for the device but ``Mark.wait``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpu_worker.engine.device import Stamp


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
