"""The CPU twin of a device's streams: copies run later, in their own threads, and a log has their order.

Asynchronous copies go wrong if memory is written again before a copy has read it, or read before a copy has
written it. Here a copy reads and writes when its turn comes, not when it is started. Memory of the "device"
holds garbage until then, and a gate can hold a stream back as long as a test wants. Compute is what the
calling thread does. It blocks only to wait for copies, as a real compute stream does.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpu_worker.engine.device import Mark, Stamp

#: Seconds after which a wait counts as a deadlock.
_WAIT_SECONDS = 60.0
_GARBAGE = 0xA5


@dataclass(slots=True)
class TwinMark:
    """A point in a stream. ``at`` is the monotonic time at which it was reached."""

    at: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)

    def reach(self) -> None:
        """Note that all work before it is done."""
        self.at = time.perf_counter()
        self._done.set()

    def reached(self) -> bool:
        """Whether it was reached."""
        return self._done.is_set()

    def wait(self) -> None:
        """Block until it is reached. Raises ``TimeoutError`` if it never is."""
        if not self._done.wait(_WAIT_SECONDS):
            raise TimeoutError("a mark of the twin was never reached")

    def seconds_until(self, later: Stamp) -> float:
        """Wall seconds between two marks that have been reached."""
        assert isinstance(later, TwinMark)
        return later.at - self.at


class TwinStream:
    """One stream: a thread that does its work in order, while its gate is open."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self._name = name
        self._log = log
        self._work: queue.SimpleQueue[tuple[Callable[[], None], TwinMark] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"twin-{name}", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> TwinMark:
        """Do this work after all that was put before."""
        mark = TwinMark()
        self._log.append(f"{self._name} queued")
        self._work.put((work, mark))
        return mark

    def close(self) -> None:
        """End the thread. Work that is held back is not done."""
        self._work.put(None)
        self.gate.set()
        self._thread.join(_WAIT_SECONDS)

    def _run(self) -> None:
        while (entry := self._work.get()) is not None:
            work, mark = entry
            self.gate.wait(_WAIT_SECONDS)
            work()
            del work, entry  # they hold the memory that was copied
            self._log.append(f"{self._name} done")
            mark.reach()


class TwinStreams:
    """Streams on the CPU: at most ``capacity`` bytes of live uploads, ``pinnable`` of pinned memory."""

    kind = "twin"

    def __init__(self, *, capacity: int = 1 << 40, pinnable: int = 1 << 40) -> None:
        self.log: list[str] = []
        self.inward = TwinStream("in", self.log)
        self.outward = TwinStream("out", self.log)
        self.capacity = capacity
        self.pinnable = pinnable
        self.freed_caches = 0
        self._device = _Meter()
        self._host = _Meter()

    def pinned(self, nbytes: int) -> Tensor:
        """Host memory, if ``pinnable`` allows it."""
        if self._host.nbytes + nbytes > self.pinnable:
            raise torch.AcceleratorError("CUDA error: out of memory")
        return self._host.measured(torch.empty(nbytes, dtype=torch.uint8))

    def pinned_bytes(self) -> int:
        """Bytes of it that are in use."""
        return self._host.nbytes

    def target(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Memory with garbage, if ``capacity`` allows it."""
        nbytes = shape.numel() * dtype.itemsize
        if self._device.nbytes + nbytes > self.capacity:
            raise torch.OutOfMemoryError(f"{self._device.nbytes} and {nbytes} bytes of {self.capacity}")
        flat = torch.full((nbytes,), _GARBAGE, dtype=torch.uint8)
        return self._device.measured(flat.view(dtype).view(shape))

    def copy_in(self, target: Tensor, source: Tensor) -> TwinMark:
        """Copy when the stream's turn comes, whatever the source holds then."""
        return self.inward.put(lambda: _copy(target, source))

    def compute_after(self, marks: Sequence[Mark], uploaded: Sequence[Tensor]) -> None:
        """Wait, since the caller is the compute stream."""
        for mark in marks:
            mark.wait()
        self.log.append("compute begins")

    def mark(self) -> TwinMark:
        """A mark that is already reached: compute is done when its call returns."""
        mark = TwinMark()
        mark.reach()
        return mark

    def copy_out(self, source: Tensor, target: Tensor, after: Mark) -> TwinMark:
        """Copy when the stream's turn comes, whatever the source holds then."""
        return self.outward.put(lambda: _copy(target, source))

    def free_cache(self) -> None:
        """Count the call."""
        self.freed_caches += 1

    def close(self) -> None:
        """End the threads."""
        self.inward.close()
        self.outward.close()


class _Meter:
    """Bytes of memory in use, under any views."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = threading.Lock()

    def measured(self, tensor: Tensor) -> Tensor:
        self._add(tensor.nbytes)
        weakref.finalize(tensor.untyped_storage(), self._add, -tensor.nbytes)
        return tensor

    def _add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
