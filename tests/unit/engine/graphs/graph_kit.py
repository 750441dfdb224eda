"""Batches and runners for the tests of captured forwards."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.gpu.twin_graphs import TwinBackend
from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.engine.graphs.cuda_graph import Call
from gpu_worker.engine.graphs.graph_set import CaptureBounds
from gpu_worker.engine.graphs.runner import GraphPlan, GraphRunner
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, raw_audio, raw_image

LARGE = CaptureBounds(memory=1 << 30, graphs=64)


class EvenBackend(TwinBackend):
    """A twin on which every call takes no time, so that a replay is always chosen."""

    def seconds(self, call: Call) -> float:
        return 0.0


class Formless:
    """An encoder that says nothing of how its inputs grow."""

    def __init__(self, inner: Encoder) -> None:
        self.card, self.plan, self.preprocess = inner.card, inner.plan, inner.preprocess
        self.forward, self.warm_up = inner.forward, inner.warm_up


def graph_plan(items: int = 8, rows: int = 2048, bounds: CaptureBounds = LARGE, **fields: bool) -> GraphPlan:
    return GraphPlan(most_items=items, most_rows=rows, bounds=bounds, **fields)


def warm_runner(encoder: Encoder, plan: GraphPlan, backend: TwinBackend | None = None) -> GraphRunner:
    runner = GraphRunner(backend or EvenBackend(), plan)
    runner.warm_up(encoder)
    return runner


def image(height: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


def images_of(encoder: Encoder, sizes: list[tuple[int, int]], seed: int = 0) -> Inputs:
    """A batch of random images; the image of a size and place is the same whatever its neighbours are."""
    raws = [image(*size, seed + index) for index, size in enumerate(sizes)]
    plans = [encoder.plan(raw_image(*size), NO_OPTIONS) for size in sizes]
    return encoder.preprocess(raws, plans)


def poisoned(inputs: Inputs, name: str) -> Inputs:
    """The batch with NaN in one of its tensors."""
    spoilt = torch.full_like(inputs.tensors[name], float("nan"))
    return Inputs(tensors={**inputs.tensors, name: spoilt}, layout=inputs.layout)


def audios_of(encoder: Encoder, seconds: list[float], seed: int = 5) -> Inputs:
    """A batch of noises; the noise of a length and place is the same whatever its neighbours are."""
    lengths = [int(16_000 * length) for length in seconds]
    raws = [noise(length, seed + index) for index, length in enumerate(lengths)]
    plans = [encoder.plan(raw_audio(length), NO_OPTIONS) for length in lengths]
    return encoder.preprocess(raws, plans)


def noise(samples: int, seed: int) -> Tensor:
    return torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.1
