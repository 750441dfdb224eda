"""The device's own limits, measured in the same run: a large matrix product, and copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.gpu.target import Target

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
