"""Both ratios, each of alternating measurements in one run, so that a busy machine affects both sides."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engine.rig import REALISTIC, SMALL, EngineRig, NotingRunner, load_random
from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.engine.forward import EagerRunner

#: Items that are submitted at once, for both figures.
TOGETHER = 16
_BATCH = 8  #: items of a batch at the realistic size: two batches, so that staging and writing may overlap
_SMALL_IMAGE = (96, 96)
_PHOTO = (480, 640)


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Medians of all repeats. Rates are items a second, times are seconds for ``TOGETHER`` items.

    ``dtype`` is that of the encoders. ``overhead_cpu`` is the overhead in this process's CPU time. It
    varies less if other processes keep the cores busy, but also counts the spinning of several torch threads.
    """

    dtype: str
    packing_gain: float
    overhead: float
    overhead_cpu: float
    packed_per_s: float
    single_per_s: float
    engine_seconds: float
    bare_seconds: float


def measure(folder: Path, repeats: int, dtype: str) -> EngineFigures:
    """Measure both. ``folder`` should be in memory, as the folders of a worker.

    ``dtype`` as in ``epd.toml``.

    Raises:
        EncodeFailed: the engine failed an item.
    """
    small, realistic = (load_random(size, folder, dtype) for size in (SMALL, REALISTIC))
    packed, single = _packing(folder, small, repeats)
    engine, bare, engine_cpu, bare_cpu = _overhead(folder, realistic, repeats)
    return EngineFigures(
        dtype=realistic.card.dtype,
        packing_gain=_median_ratio(single, packed),
        overhead=_median_ratio(engine, bare) - 1,
        overhead_cpu=_median_ratio(engine_cpu, bare_cpu) - 1,
        packed_per_s=TOGETHER / statistics.median(packed),
        single_per_s=TOGETHER / statistics.median(single),
        engine_seconds=statistics.median(engine),
        bare_seconds=statistics.median(bare),
    )


def _packing(folder: Path, encoder: Encoder, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds for the items submitted together, and for the same items one at a time."""
    rig = EngineRig(encoder, folder, max_items=TOGETHER, runner=EagerRunner())
    try:
        slots = [rig.image(folder / f"small-{i}", *_SMALL_IMAGE) for i in range(TOGETHER)]
        rig.together(slots)
        rig.one_by_one(slots[:2])
        packed, single = [], []
        for _ in range(repeats):
            packed.append(rig.together(slots))
            single.append(rig.one_by_one(slots))
        return packed, single
    finally:
        rig.close()


def _overhead(folder: Path, encoder: Encoder, repeats: int) -> tuple[list[float], ...]:
    """Seconds of the engine from submission to the last file, and of the bare forwards of its batches.

    The other two lists are the same in CPU seconds of this process.
    """
    runner = NotingRunner()
    rig = EngineRig(encoder, folder, max_items=_BATCH, runner=runner)
    bare_thread = BareForwards(encoder)
    try:
        slots = [rig.image(folder / f"photo-{i}", *_PHOTO) for i in range(TOGETHER)]
        rig.together(slots)
        bare_thread.seconds(runner.inputs)
        times: tuple[list[float], ...] = ([], [], [], [])
        for _ in range(repeats):
            runner.inputs.clear()
            marks = [time.process_time()]
            engine = rig.together(slots)
            marks.append(time.process_time())
            bare = bare_thread.seconds(runner.inputs)
            marks.append(time.process_time())
            for kept, value in zip(
                times, (engine, bare, marks[1] - marks[0], marks[2] - marks[1]), strict=True
            ):
                kept.append(value)
        return times
    finally:
        bare_thread.close()
        rig.close()


class BareForwards:
    """Only forwards, on one lasting thread as in the engine, so that torch keeps its own threads."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._asked: queue.SimpleQueue[Sequence[Inputs] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="bare-forward", daemon=True)
        self._thread.start()

    def seconds(self, batches: Sequence[Inputs]) -> float:
        """Seconds for these batches, in order."""
        self._asked.put(list(batches))
        return self._answers.get(timeout=120)

    def close(self) -> None:
        """End the thread."""
        self._asked.put(None)
        self._thread.join(120)

    def _loop(self) -> None:
        while (batches := self._asked.get()) is not None:
            started = time.perf_counter()
            for inputs in batches:
                self._encoder.forward(inputs)
            self._answers.put(time.perf_counter() - started)


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios of pairs: a slow moment of the machine spoils only one pair."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))
