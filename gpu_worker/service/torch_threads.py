"""How many threads torch computes with on a CPU: set, or chosen by a short calibration."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import psutil
import torch

from epd.contracts.errors import EncodeFailed
from gpu_worker.encoders.base import Encoder

_log = logging.getLogger(__name__)

#: Seconds that the calibration may take, as far as this can be estimated.
_CALIBRATION = 5.0
#: The most measurements for each number of threads, and the seconds after which no further one starts.
_TRIES = 4
_TRY_SECONDS = 0.5
#: Seconds after which an encoder counts as hung; the engine's warm-up has the same limit.
_HUNG_AFTER = 600.0
#: Fewer threads win only below this share of the time: one item is measured, but batches gain from threads.
_MARGIN = 0.9

#: Measures the seconds that one item takes with a number of threads.
Measure = Callable[[int], float]


def core_share(share: int = 1) -> int:
    """The number of physical cores for this process when ``share`` processes divide them; at least one.

    Hyper-threads share the units that matrix products need, so more threads than cores are slower.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or allowed
    return max(1, min(cores, allowed) // share)


def set_torch_threads(wanted: int, share: int = 1) -> int:
    """Set and return torch's number of threads; 0 is one per core of our share."""
    threads = wanted or core_share(share)
    torch.set_num_threads(threads)
    return threads


def choose_threads(wanted: int, encoders: Mapping[str, Encoder], share: int = 1) -> int:
    """Set torch's number of threads to ``wanted``; for 0 a calibration with these encoders chooses it.

    Call it before the threads that compute start: torch reads the number once in each thread.

    Returns:
        The number of threads.

    Raises:
        EncodeFailed: an encoder does not run.
    """
    most = core_share(share)
    if wanted or most == 1 or any(encoder.card.device != "cpu" for encoder in encoders.values()):
        threads = set_torch_threads(wanted, share)
        _log.info("torch computes with %d threads on a CPU (%s)", threads, "set" if wanted else "our cores")
        return threads
    stopwatch = _Stopwatch(encoders.values())
    stopwatch(most)  # the first run is slower: it makes what later runs reuse
    seconds = measured_seconds(most, stopwatch)
    threads = fastest(seconds)
    torch.set_num_threads(threads)
    listed = ", ".join(f"{count}: {took * 1e3:.1f} ms" for count, took in sorted(seconds.items()))
    _log.info("torch computes with %d threads on a CPU (an item of each encoder with %s)", threads, listed)
    return threads


def measured_seconds(most: int, measure: Measure) -> dict[int, float]:
    """Measure with ``most`` threads, half of them and one, in this order; skip those that take too long."""
    seconds: dict[int, float] = {}
    started = time.monotonic()
    for count in sorted({1, max(1, most // 2), most}, reverse=True):
        expected = max((took * most / count for took in seconds.values()), default=0.0)
        if time.monotonic() - started + expected > _CALIBRATION:
            break
        seconds[count] = measure(count)
    return seconds


def fastest(seconds: Mapping[int, float]) -> int:
    """The largest number of threads that no smaller one beats by the margin."""
    best = max(seconds)
    for count in sorted(seconds, reverse=True):
        if seconds[count] < seconds[best] * _MARGIN:
            best = count
    return best


class _Stopwatch:
    """Times one item of every encoder, in a new thread for each number of torch threads."""

    def __init__(self, encoders: Iterable[Encoder]) -> None:
        self._encoders = tuple(encoders)

    def __call__(self, count: int) -> float:
        """The shortest of a few measurements; slow encoders are measured once."""
        answer: list[float | Exception] = []
        run = partial(self._measure, count, answer)
        thread = threading.Thread(target=run, name="calibration", daemon=True)
        thread.start()
        thread.join(_HUNG_AFTER)
        found = answer[0] if answer else EncodeFailed(f"an item took more than {_HUNG_AFTER:.0f} s")
        if isinstance(found, Exception):
            raise EncodeFailed(f"warm-up failed: {found}") from found
        return found

    def _measure(self, count: int, answer: list[float | Exception]) -> None:
        try:
            torch.set_num_threads(count)
            answer.append(self._shortest())
        except Exception as error:
            answer.append(error)

    def _shortest(self) -> float:
        seconds = [self._once()]
        while len(seconds) < _TRIES and sum(seconds) < _TRY_SECONDS:
            seconds.append(self._once())
        return min(seconds)

    def _once(self) -> float:
        started = time.perf_counter()
        for encoder in self._encoders:
            encoder.warm_up()
        return time.perf_counter() - started
