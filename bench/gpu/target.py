"""Where the benchmark runs: the device, its dtype, and how forwards are captured on it."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One device. ``self_test``: everything is tiny, and no figure says anything of a GPU."""

    device: torch.device
    name: str
    dtype: torch.dtype
    make_backend: Callable[[], GraphBackend]
    meter: Meter
    self_test: bool


def cuda_target(device: torch.device) -> Target:
    """A CUDA device in bfloat16, as a worker runs on it; the first where none is numbered."""
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
    """The processor with the twin of captured forwards: shows that the benchmark runs, and no more."""
    return Target(
        device=torch.device("cpu"),
        name="the processor",
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
    """Random values: on zeros a product can run faster than on any data."""
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
