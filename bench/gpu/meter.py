"""Time and memory of work on a device. Medians of many rounds; a round in which the host slept spoils one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch

Call = Callable[[], object]

#: Rounds that are timed for each figure, and the seconds that they may take together.
_MOST_ROUNDS, _LEAST_ROUNDS = 30, 3
_ENOUGH = 0.5


class Meter(Protocol):
    """The clock and the memory counters of one device."""

    def seconds(self, call: Call) -> float:
        """Median seconds of a call's work, launches included, after one call that is not counted."""
        ...

    def wait(self) -> None:
        """Return when the device has done all that it was given."""
        ...

    def begin_peak(self) -> None:
        """Count the most memory from now on."""
        ...

    def peak_bytes(self) -> int | None:
        """The most bytes of the device that tensors took since then; None where nobody counts."""
        ...

    def pinned_bytes(self) -> int | None:
        """The most bytes of pinned host memory that were held since then."""
        ...


class CudaMeter:
    """Events in the compute stream: device time, and the gaps in which the device waited for launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, call: Call) -> float:
        """The rounds are queued one behind the other, and waited for once."""
        self._timed(call, 1)
        rounds = _rounds(self._timed(call, 1)[0], _ENOUGH)
        return statistics.median(self._timed(call, rounds))

    def wait(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self._device)

    def begin_peak(self) -> None:
        """Free what is cached, and forget the peaks of the device and of pinned memory."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        torch.cuda.memory.reset_peak_host_memory_stats()

    def peak_bytes(self) -> int | None:
        """Bytes of live tensors at their most, those of captured forwards included."""
        return int(torch.cuda.max_memory_allocated(self._device))

    def pinned_bytes(self) -> int | None:
        """Bytes of torch's pinned blocks, in use or kept for the next, at their most."""
        most: int | None = torch.cuda.memory.host_memory_stats().get("allocated_bytes.peak")
        return most

    def _timed(self, call: Call, rounds: int) -> list[float]:
        marks = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(rounds)
        ]
        for begin, end in marks:
            begin.record()
            call()
            end.record()
        self.wait()
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in marks]


class CpuMeter:
    """Wall time; memory of a processor is not told apart."""

    def __init__(self, enough: float = _ENOUGH) -> None:
        """Rounds of one figure may take ``enough`` seconds together."""
        self._enough = enough

    def seconds(self, call: Call) -> float:
        """Median of the rounds."""
        call()
        rounds = _rounds(self._once(call), self._enough)
        return statistics.median(self._once(call) for _ in range(rounds))

    def wait(self) -> None:
        """Work is done when its call returns."""

    def begin_peak(self) -> None:
        """Nobody counts."""

    def peak_bytes(self) -> int | None:
        """Nobody counts."""
        return None

    def pinned_bytes(self) -> int | None:
        """None is pinned."""
        return None

    def _once(self, call: Call) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started


def _rounds(once: float, enough: float) -> int:
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(enough / max(once, 1e-6))))
