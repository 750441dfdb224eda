"""What captured forwards must do on any device; ``tests/unit`` runs the same checks on the twin."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import torch

from gpu_worker.encoders.base import Capturable, Encoder, GraphForm, Inputs
from gpu_worker.engine.graphs.buckets import Bucket
from gpu_worker.engine.graphs.runner import GraphRunner
from tests.gpu.batches import batch_of, same_item_in_crowds, smallest_step
from tests.gpu.site import Site
from tests.unit.engine.graphs.graph_kit import graph_plan, poisoned

#: The tensor of each family that holds its media.
MEDIA = {"whisper": "mel", "qwen2_audio": "mel", "qwen2_5_omni_audio": "mel", "dinov2": "images",
         "clip": "images", "siglip": "images"}  # fmt: skip


class Captured:
    """A tiny encoder whose buckets are all captured, with the runner that always replays."""

    def __init__(self, site: Site, family: str, folder: Path, *, items: int, rows: int) -> None:
        self.site = site
        self.encoder: Encoder = site.encoder(family, folder)
        assert isinstance(self.encoder, Capturable), f"{family} cannot be captured"
        self.form: GraphForm = self.encoder.graph_form
        plan = graph_plan(items=items, rows=rows, required=True)
        self.buckets: list[Bucket] = plan.buckets(self.form)
        self.runner = GraphRunner(site.even_backend(), plan)
        self.runner.warm_up(self.encoder)
        self.step = smallest_step(self.encoder, self.form)

    def batch(self, units: int, seed: int = 0) -> Inputs:
        inputs = batch_of(self.encoder, units, seed=seed)
        assert inputs.tensors[self.form.units].shape[0] == units
        return inputs

    def spoil(self, units: int) -> None:
        """Replay a batch of NaN: static buffers and the pool are full of it."""
        media = MEDIA.get(self.encoder.card.family, "patches")
        rows = self.runner.run(self.encoder, poisoned(self.batch(units), media))
        assert not torch.isfinite(rows).any()

    def check(self, inputs: Inputs, what: object) -> None:
        """The runner's rows are the eager ones."""
        expected = self.encoder.forward(inputs)
        self.site.assert_close(self.runner.run(self.encoder, inputs), expected, what)

    @property
    def misses(self) -> int:
        return self.runner.figures(self.encoder.card.name).misses


def check_bucket_edges(site: Site, family: str, folder: Path, *, items: int = 6, rows: int = 1024) -> None:
    """One unit less than a bucket, just it, one more; each on buffers that the largest batch spoilt."""
    captured = Captured(site, family, folder, items=items, rows=rows)
    largest = captured.buckets[-1].units
    edges = {bucket.units + by for bucket in captured.buckets for by in (-captured.step, 0, captured.step)}
    for units in sorted(edges - {0}):
        captured.spoil(largest)
        captured.check(captured.batch(units, seed=units), units)
    # All but what is larger than the largest bucket was replayed.
    assert captured.misses == 1


def check_every_pair(site: Site, family: str, folder: Path, *, items: int = 4, rows: int = 768) -> None:
    """A batch of NaN in one bucket, then a batch with padding in another: no NaN comes through."""
    captured = Captured(site, family, folder, items=items, rows=rows)
    pairs = product(captured.buckets, repeat=2)
    for before, after in pairs:
        captured.spoil(before.units)
        units = max(captured.step, after.units - captured.step)
        captured.check(captured.batch(units, seed=before.units), (before.units, after.units))
    assert captured.misses == 0


def check_neighbours(site: Site, family: str, folder: Path) -> None:
    """In one bucket an item's rows are the same bits, whatever stands next to it."""
    captured = Captured(site, family, folder, items=3, rows=576)
    own, crowds = same_item_in_crowds(captured.encoder)
    results = [captured.runner.run(captured.encoder, crowd)[:own] for crowd in crowds]
    assert captured.misses == 0
    assert captured.runner.figures(captured.encoder.card.name).hits == len(crowds)
    assert all(torch.equal(results[0], other) for other in results[1:])


def check_rows_are_kept(site: Site, family: str, folder: Path) -> None:
    """Rows that were given out are nobody's memory but the caller's."""
    captured = Captured(site, family, folder, items=3, rows=320)
    rows = captured.runner.run(captured.encoder, captured.batch(captured.buckets[0].units))
    kept = rows.clone()
    for bucket in captured.buckets:
        captured.spoil(bucket.units)
    assert torch.equal(rows, kept)


def check_calibrated(site: Site, family: str, folder: Path) -> None:
    """With real timings either way may be chosen, and the rows are the eager ones."""
    encoder = site.encoder(family, folder)
    runner = GraphRunner(site.backend(), graph_plan(items=4, rows=512, required=True))
    runner.warm_up(encoder)
    figures = runner.figures(encoder.card.name)
    assert figures.graphs > 0
    assert figures.memory > 0
    assert isinstance(encoder, Capturable)
    counts = (1, 3, 4) if encoder.graph_form.smallest == 1 else (200, 256, 500)
    for units in counts:
        inputs = batch_of(encoder, units, seed=units)
        site.assert_close(runner.run(encoder, inputs), encoder.forward(inputs), units)
    figures = runner.figures(encoder.card.name)
    assert figures.hits + figures.declined == len(counts)
