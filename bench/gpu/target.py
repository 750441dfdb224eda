"""Where the benchmark runs: the device, its dtype, its clock and memory counters, and its limits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from bench.gpu.twin_graphs import TwinBackend
from gpu_worker.engine.graphs.cuda_graph import CudaBackend, GraphBackend

Call = Callable[[], object]

#: Most and fewest timed rounds of a figure, and the seconds that they may take together.
_MOST_ROUNDS, _LEAST_ROUNDS = 30, 3
_ENOUGH = 0.5


class Meter(Protocol):
    """The clock and the memory counters of one device."""

    def seconds(self, call: Call) -> float:
        """Median seconds of a call's work, launches included, after one call to warm up."""
        ...

    def wait(self) -> None:
        """Return when the device has finished all its work."""
        ...

    def begin_peak(self) -> None:
        """Start to measure the peak memory."""
        ...

    def peak_bytes(self) -> int | None:
        """Peak bytes of tensors on the device since then. ``None`` if they are not counted."""
        ...

    def pinned_bytes(self) -> int | None:
        """Peak bytes of pinned host memory since then. ``None`` if they are not counted."""
        ...


class CudaMeter:
    """Events in the compute stream: device time, and the gaps in which the device waited for launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, call: Call) -> float:
        """Median of the rounds, which are queued together and waited for once."""
        self._timed(call, 1)
        rounds = _rounds(self._timed(call, 1)[0], _ENOUGH)
        return statistics.median(self._timed(call, rounds))

    def wait(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self._device)

    def begin_peak(self) -> None:
        """Free cached memory, and reset the peaks of the device and of pinned memory."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        torch.cuda.memory.reset_peak_host_memory_stats()

    def peak_bytes(self) -> int | None:
        """Peak bytes of live tensors, including those of captured forwards."""
        return int(torch.cuda.max_memory_allocated(self._device))

    def pinned_bytes(self) -> int | None:
        """Peak bytes of torch's pinned blocks, in use or cached."""
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
    """Wall time. Memory of a CPU is not counted."""

    def __init__(self, enough: float = _ENOUGH) -> None:
        """The rounds of one figure may take ``enough`` seconds together."""
        self._enough = enough

    def seconds(self, call: Call) -> float:
        """Median of the rounds."""
        call()
        rounds = _rounds(self._once(call), self._enough)
        return statistics.median(self._once(call) for _ in range(rounds))

    def wait(self) -> None:
        """Does nothing: work is done when its call returns."""

    def begin_peak(self) -> None:
        """Does nothing."""

    def peak_bytes(self) -> int | None:
        """Not counted."""
        return None

    def pinned_bytes(self) -> int | None:
        """Not counted."""
        return None

    def _once(self, call: Call) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started


def _rounds(once: float, enough: float) -> int:
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(enough / max(once, 1e-6))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One device. With ``self_test`` everything is tiny, and no figure says anything about a GPU."""

    device: torch.device
    name: str
    dtype: torch.dtype
    make_backend: Callable[[], GraphBackend]
    meter: Meter
    self_test: bool


def cuda_target(device: torch.device) -> Target:
    """A CUDA device in bfloat16, as for a worker. The first one if the device has no index."""
    device = torch.device("cuda", device.index or 0)
    torch.cuda.set_device(device)
    return Target(
        device=device,
        name=torch.cuda.get_device_name(device),
        dtype=torch.bfloat16,
        make_backend=lambda: CudaBackend(device),
        meter=CudaMeter(device),
        self_test=False,
    )


def self_test_target() -> Target:
    """The CPU with the twin of captured forwards. It only shows that the benchmark runs."""
    return Target(
        device=torch.device("cpu"),
        name="the CPU",
        dtype=torch.float32,
        make_backend=TwinBackend,
        meter=CpuMeter(enough=0.01),
        self_test=True,
    )


_SIDE, _TINY_SIDE = 8192, 128
_COPIED, _TINY_COPIED = 1 << 28, 1 << 16  #: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """``tflops`` of a square product in ``dtype``; gigabytes a second of copies from and to pinned memory."""

    dtype: str
    tflops: float
    upload_gb_per_s: float
    download_gb_per_s: float


def measure_limit(target: Target) -> Limit:
    """Measure with random values, since a product of zeros can be faster than one of data."""
    seconds = target.meter.seconds
    side = _TINY_SIDE if target.self_test else _SIDE
    left, right = (torch.randn(side, side, device=target.device).to(target.dtype) for _ in range(2))
    product = torch.empty_like(left)
    multiplied = seconds(lambda: torch.mm(left, right, out=product))
    nbytes = _TINY_COPIED if target.self_test else _COPIED
    host = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    host = host.pin_memory() if target.device.type == "cuda" else host
    there = torch.empty(nbytes, dtype=torch.uint8, device=target.device)
    return Limit(
        dtype=str(target.dtype).removeprefix("torch."),
        tflops=2 * side**3 / multiplied / 1e12,
        upload_gb_per_s=nbytes / seconds(lambda: there.copy_(host, non_blocking=True)) / 1e9,
        download_gb_per_s=nbytes / seconds(lambda: host.copy_(there, non_blocking=True)) / 1e9,
    )
