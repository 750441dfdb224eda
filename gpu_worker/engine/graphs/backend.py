"""What the graph runner asks of a device: capture a call, replay it, and say what memory that took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.encoders.graph_form import GraphForm

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
