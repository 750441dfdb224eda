"""Figures of rows: against transformers, of bfloat16, packed against single, and in one bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gpu_worker.encoders.base import Capturable, Encoder, Inputs
from gpu_worker.engine.graphs.buckets import load_of, smallest_fit
from gpu_worker.engine.graphs.runner import GraphPlan
from tests.parity.published import Item, Published
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS
from tests.unit.engine.graphs.graph_kit import LARGE, warm_runner

#: Every batch fits; few captures, so that most batches are padded.
PLAN = GraphPlan(most_items=4, most_rows=2048, bounds=LARGE, steps=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketFigures:
    """``batches`` held the item, in ``buckets``; ``replayed`` of them by a captured forward.

    ``equal``: the item's rows had the same bits in all batches of a bucket.
    """

    equal: bool
    batches: int
    buckets: int
    replayed: int


def highest(values: Iterable[float]) -> float:
    """NaN where any is, which ``max`` may pass over."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


def lowest(values: Iterable[float]) -> float:
    """NaN where any is."""
    return float(torch.tensor(list(values), dtype=torch.float64).min())


def relative_error(got: Tensor, wanted: Tensor, parts: int = 1) -> float:
    """Largest absolute difference over the largest absolute value; the worst of the rows' equal parts."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    pairs = zip(got.float().chunk(parts, 1), wanted.float().chunk(parts, 1), strict=True)
    return highest(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


def cosine(got: Tensor, wanted: Tensor) -> float:
    """Of two whole embeddings."""
    return float(cosine_similarity(got.double().flatten(), wanted.double().flatten(), dim=0))


def row_cosine(got: Tensor, wanted: Tensor) -> float:
    """The lowest of any row's."""
    return float(cosine_similarity(got.double(), wanted.double(), dim=1).min())


def bucket_figures(published: Published, encoder: Encoder) -> BucketFigures:
    """One item in each of its companies, at every place in each, through the graph runner on the CPU twin.

    A family that no graph serves is run eagerly; its bucket is the shapes of its inputs.
    """
    runner = warm_runner(encoder, PLAN)
    seen: dict[Hashable, list[Tensor]] = defaultdict(list)
    for inputs, own in _batches(published, encoder):
        seen[_bucket(encoder, inputs)].append(runner.run(encoder, inputs)[own])
    shared = {bucket: rows for bucket, rows in seen.items() if len(rows) > 1}
    return BucketFigures(
        equal=bool(shared) and all(torch.equal(rows[0], row) for rows in shared.values() for row in rows),
        batches=sum(map(len, shared.values())),
        buckets=len(shared),
        replayed=runner.figures(encoder.card.name).hits,
    )


def _batches(published: Published, encoder: Encoder) -> Iterator[tuple[Inputs, slice]]:
    """Inputs of each batch, and which rows of it are the item's."""
    subject, crowds = published.company()
    for crowd in crowds:
        for place in range(len(crowd) + 1):
            items: list[Item] = [*crowd[:place], subject, *crowd[place:]]
            plans = [encoder.plan(raw, NO_OPTIONS) for raw, _ in items]
            start = sum(plan.tokens for plan in plans[:place])
            own = slice(start, start + plans[place].tokens)
            yield encoder.preprocess([data for _, data in items], plans), own


def _bucket(encoder: Encoder, inputs: Inputs) -> Hashable:
    if isinstance(encoder, Capturable):
        bucket = smallest_fit(load_of(encoder.graph_form, inputs), PLAN.buckets(encoder.graph_form))
        if bucket is not None:
            return bucket
    return tuple((name, tuple(tensor.shape)) for name, tensor in sorted(inputs.tensors.items()))
