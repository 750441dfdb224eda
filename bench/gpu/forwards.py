"""One tower: eager against replayed forwards of growing batches, their share of the limit, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.gpu.target import Target
from bench.gpu.towers import Tower
from epd.contracts.errors import EncodeFailed
from gpu_worker.encoders.base import Capturable, Inputs
from gpu_worker.engine.graphs.buckets import Bucket, make_bucket
from gpu_worker.engine.graphs.graph_set import CaptureBounds, GraphSet
from gpu_worker.service.health import encoder_bytes

#: Items of a batch.
COUNTS = (1, 2, 4, 8, 16)
_NO_BOUND = CaptureBounds(memory=1 << 62, graphs=64)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFigures:
    """One batch of equal items, in a bucket that they fill.

    ``eager_ms`` is the encoder's forward. ``replay_ms`` is what the runner does instead: fill the static
    buffers, replay, copy the rows. ``tflops`` and ``share_of_limit`` are those of the faster one, from the
    operations that ``Tower.operations`` counts. ``largest_difference`` is between the rows of both, relative
    to the largest eager value.
    """

    items: int
    units: int
    eager_ms: float
    replay_ms: float
    speed_up: float
    items_per_s: float
    tflops: float
    share_of_limit: float
    largest_difference: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TowerMemory:
    """Bytes of the encoder's tensors, of static buffers and captures, and the most during eager forwards.

    The last two are for the measured batches. ``eager_peak`` includes weights, inputs and rows.
    """

    weights: int
    graphs: int
    eager_peak: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TowerFigures:
    """All figures of one tower. ``missing`` has, by units, why a bucket has no graph."""

    tower: str
    parameters: int
    memory: TowerMemory
    batches: tuple[BatchFigures, ...]
    missing: dict[str, str]


@torch.inference_mode()
def measure_tower(
    tower: Tower, target: Target, limit_tflops: float | None, counts: Sequence[int] = COUNTS
) -> TowerFigures:
    """Build the tower, run it eagerly, then capture it. ``limit_tflops`` is ``None`` if it is not known.

    Raises:
        EncodeFailed: no bucket could be captured.
    """
    encoder, meter = tower.on(target), target.meter
    batches = [tower.items(encoder, count) for count in counts]
    meter.begin_peak()
    eager = [meter.seconds(partial(encoder.forward, inputs)) for inputs in batches]
    peak = meter.peak_bytes()
    graphs = _captured(encoder, batches, target)
    memory = TowerMemory(weights=encoder_bytes(encoder), graphs=graphs.memory(), eager_peak=peak)
    figures: list[BatchFigures] = []
    for count, inputs, seconds in zip(counts, batches, eager, strict=True):
        bucket = graphs.bucket_for(inputs)
        if bucket is None:
            continue
        trial = _Trial(
            items=count,
            units=bucket.units,
            eager=seconds,
            replay=meter.seconds(partial(graphs.run, bucket, inputs)),
            operations=tower.operations(inputs),
        )
        difference = _difference(graphs.run(bucket, inputs), encoder.forward(inputs))
        figures.append(trial.figures(limit_tflops, difference))
    if not figures:
        raise EncodeFailed(f"no graph of {tower.name}: {'; '.join(graphs.missing.values())}")
    return TowerFigures(
        tower=tower.name,
        parameters=encoder.card.parameters,
        memory=memory,
        batches=tuple(figures),
        missing={str(bucket.units): reason for bucket, reason in graphs.missing.items()},
    )


def _captured(encoder: Capturable, batches: Sequence[Inputs], target: Target) -> GraphSet:
    """Captures of exactly the buckets that the batches fill."""
    form = encoder.graph_form
    units = {inputs.tensors[form.units].shape[0] for inputs in batches}
    wanted: list[Bucket] = [make_bucket(form, count) for count in sorted(units)]
    graphs = GraphSet(encoder, encoder.sample(), wanted, target.make_backend())
    graphs.capture_all(_NO_BOUND)
    return graphs


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """Measurements of one batch: seconds eager and replayed, and the operations of one forward."""

    items: int
    units: int
    eager: float
    replay: float
    operations: int

    def figures(self, limit_tflops: float | None, difference: float) -> BatchFigures:
        """The figures of the batch."""
        fastest = min(self.eager, self.replay)
        tflops = self.operations / fastest / 1e12
        return BatchFigures(
            items=self.items,
            units=self.units,
            eager_ms=self.eager * 1e3,
            replay_ms=self.replay * 1e3,
            speed_up=self.eager / self.replay,
            items_per_s=self.items / fastest,
            tflops=tflops,
            share_of_limit=tflops / limit_tflops if limit_tflops else 0.0,
            largest_difference=difference,
        )


def _difference(rows: torch.Tensor, expected: torch.Tensor) -> float:
    """NaN if either has one: a wrong capture must not look like a fast one."""
    largest = (rows.float() - expected.float()).abs().max() / expected.float().abs().max()
    return float(largest)
