"""The processor as a device: nothing is copied, and work is done when the call returns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_worker.engine.device import Stamp


@dataclass(frozen=True, slots=True)
class CpuStamp:
    """Seconds of the monotonic clock."""

    at: float

    def seconds_until(self, later: Stamp) -> float:
        """Wall seconds between two stamps of this device."""
        assert isinstance(later, CpuStamp)
        return later.at - self.at


class CpuDevice:
    """A device without memory of its own."""

    kind = "cpu"

    def upload(self, host: Tensor) -> Tensor:
        """The tensor itself."""
        return host

    def await_uploads(self, uploaded: Sequence[Tensor]) -> None:
        """Nothing to wait for."""

    def stamp(self) -> Stamp:
        """Now."""
        return CpuStamp(time.perf_counter())

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """The rows themselves, made contiguous."""
        return rows.contiguous()

    def free_cache(self) -> None:
        """The allocator keeps nothing back."""

    def staging_bytes(self) -> int:
        """None: media are read where they lie."""
        return 0
