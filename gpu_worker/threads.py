"""How many threads torch computes with on a CPU."""

from __future__ import annotations

import os

import psutil
import torch


def set_torch_threads(wanted: int) -> int:
    """Have torch use so many threads in this process; 0 is one a physical core that we may run on.

    Hyper-threads share the units that matrix products need, so more threads than cores cost time.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or allowed
    threads = wanted or max(1, min(cores, allowed))
    torch.set_num_threads(threads)
    return threads
