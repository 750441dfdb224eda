"""What encoders and their worker occupy, measured on what is there and not computed from a configuration."""

from __future__ import annotations

import gc
import types
from collections.abc import Mapping
from typing import Any

import psutil
import torch
from torch import Tensor

from epd.telemetry.counters import Count, counter_key
from gpu_worker.encoders.base import Encoder

#: What no encoder owns: code, and through its globals the rest of the process.
_NOT_OWNED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def encoder_bytes(encoder: Encoder) -> int:
    """Bytes of all tensors that an encoder holds: weights, tables, static buffers. Shared memory counts once.

    Found by the garbage collector's own references, so no family can forget one.
    """
    storages: dict[int, int] = {}
    seen: set[int] = set()
    pending: list[Any] = [encoder]
    while pending:
        one = pending.pop()
        if id(one) in seen or isinstance(one, _NOT_OWNED):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        pending += gc.get_referents(one)
    return sum(storages.values())


def worker_bytes(device: str) -> int:
    """Bytes that this process has on its device: weights, graphs, staging and the allocator's reserve.

    On CUDA what torch has reserved there; on a CPU what is resident of the whole process.
    """
    if torch.device(device).type == "cuda":
        return int(torch.cuda.memory_reserved(torch.device(device)))
    return int(psutil.Process().memory_info().rss)


def memory_counters(encoder_sizes: Mapping[str, int], device: str, staging: int) -> dict[str, float]:
    """All as they stand in a heartbeat's counters; ``staging`` is bytes of pinned host memory."""
    sizes = {counter_key(Count.ENCODER_MEMORY, name): float(size) for name, size in encoder_sizes.items()}
    worker = {Count.WORKER_MEMORY: worker_bytes(device), Count.STAGING_MEMORY: staging}
    return sizes | {counter_key(name): float(size) for name, size in worker.items()}
