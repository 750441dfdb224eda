"""How well the engine overlaps its stages: its wall time against the slowest stage alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engine.rig import MAX_COST, EngineRig, Writer
from bench.gpu.target import Target
from bench.gpu.towers import Tower
from epd.contracts.errors import EncodeFailed
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.batcher import plan_slot
from gpu_worker.engine.cuda_streams import open_device
from gpu_worker.engine.device import Device
from gpu_worker.engine.forward import EagerRunner, ForwardPass, Rows
from gpu_worker.engine.replies import settle_rows
from gpu_worker.engine.slot import Planned, Slot
from gpu_worker.engine.staging import StagedItem, map_blob

_BATCHES = 8
_REPEATS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapFigures:
    """Medians for all ``items``, each stage alone (upload; preprocess and forward; download and file).

    ``efficiency`` is the engine's wall time over the slowest stage: 1 is perfect, and it cannot be much less.
    ``of_serial`` is the wall time over the sum of the stages. ``device_peak`` and ``pinned_peak`` are bytes
    while the engine ran: weights, staged batches, activations and rows; and pinned host memory.
    """

    tower: str
    image: str
    items: int
    batch_items: int
    stage_ms: float
    compute_ms: float
    write_ms: float
    wall_ms: float
    efficiency: float
    of_serial: float
    items_per_s: float
    device_peak: int | None
    pinned_peak: int | None


def measure_overlap(
    tower: Tower, size: tuple[int, int], batch_items: int, target: Target, folder: Path
) -> OverlapFigures:
    """Images of (height, width) in eight batches, through the real engine. ``folder`` is in memory.

    Raises:
        EncodeFailed: an item failed.
    """
    encoder, device = tower.on(target), open_device(str(target.device))
    rig = EngineRig(encoder, folder, max_items=batch_items, runner=EagerRunner(), device=device)
    count = _BATCHES * batch_items
    try:
        slots = [rig.image(folder / f"{tower.name}-{i}", *size) for i in range(count)]
        rig.together(slots)
        alone = [_alone(encoder, slots, batch_items, target, rig.writer, device) for _ in range(_REPEATS)]
        target.meter.begin_peak()
        wall = statistics.median(rig.together(slots) for _ in range(_REPEATS))
        peaks = target.meter.peak_bytes(), target.meter.pinned_bytes()
    finally:
        rig.close()
    staging, compute, write = (statistics.median(times) for times in zip(*alone, strict=True))
    return OverlapFigures(
        tower=tower.name,
        image=f"{size[1]}x{size[0]}",
        items=count,
        batch_items=batch_items,
        stage_ms=staging * 1e3,
        compute_ms=compute * 1e3,
        write_ms=write * 1e3,
        wall_ms=wall * 1e3,
        efficiency=wall / max(staging, compute, write),
        of_serial=wall / (staging + compute + write),
        items_per_s=count / wall,
        device_peak=peaks[0],
        pinned_peak=peaks[1],
    )


def _alone(
    encoder: Encoder, slots: Sequence[Slot], batch_items: int, target: Target, writer: Writer, device: Device
) -> tuple[float, float, float]:
    """Seconds of each stage for all batches, while the other stages are idle."""
    planned = [_planned(slot, encoder) for slot in slots]
    batches = [planned[start : start + batch_items] for start in range(0, len(planned), batch_items)]
    marks = [time.perf_counter()]

    def mark() -> None:
        target.meter.wait()
        marks.append(time.perf_counter())

    staged = [_staged(batch, device) for batch in batches]
    mark()
    rows = [rows for items in staged for rows in _rows(encoder, items, device)]
    mark()
    for one in rows:
        writer.on_settled(settle_rows(one, device))
    writer.wait(len(slots))
    mark()
    return marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]


def _planned(slot: Slot, encoder: Encoder) -> Planned:
    planned = plan_slot(slot, encoder)
    if not isinstance(planned, Planned):
        raise EncodeFailed(f"the benchmark's own item cannot be planned: {planned.error}")
    return planned


def _staged(batch: Sequence[Planned], device: Device) -> tuple[StagedItem, ...]:
    return tuple(StagedItem(one, device.upload(map_blob(one.slot)), 0.0) for one in batch)


def _rows(encoder: Encoder, items: Sequence[StagedItem], device: Device) -> Iterator[Rows]:
    device.await_uploads([item.raw for item in items])
    for part in ForwardPass(device, EagerRunner(), MAX_COST).run(encoder, items):
        if not isinstance(part, Rows):
            raise EncodeFailed(f"the benchmark's own item cannot be run: {part.outcome}")
        yield part
