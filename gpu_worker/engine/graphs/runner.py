"""A runner that replays captured forwards, and runs a batch eagerly if no capture would be as fast."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Capturable, Encoder, GraphForm, Inputs
from gpu_worker.engine.device import is_out_of_memory
from gpu_worker.engine.forward import GraphFigures
from gpu_worker.engine.graphs.buckets import Bucket, ladder, make_bucket
from gpu_worker.engine.graphs.cuda_graph import GraphBackend
from gpu_worker.engine.graphs.graph_set import CaptureBounds, GraphSet

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphPlan:
    """What to capture.

    ``most_items`` bounds the buckets of encoders that take images or windows of one size, ``most_rows`` those
    of packed rows. ``steps`` sizes are captured for each doubling. ``bounds`` hold for each encoder.
    ``required`` means that the worker must not start if one of these buckets cannot be captured.
    """

    most_items: int
    most_rows: int
    bounds: CaptureBounds
    steps: int = 4
    required: bool = False

    def buckets(self, form: GraphForm) -> list[Bucket]:
        """The buckets of an encoder, smallest first."""
        most = self.most_rows if form.segments else self.most_items
        sizes = ladder(form.smallest, most, multiple=form.multiple, steps=self.steps)
        return [make_bucket(form, units) for units in sizes]


class GraphRunner:
    """Runs forwards on the thread that owns the device, as replays if that is faster."""

    def __init__(self, backend: GraphBackend, plan: GraphPlan) -> None:
        self._backend = backend
        self._plan = plan
        self._sets: dict[str, GraphSet] = {}
        self._figures: dict[str, GraphFigures] = {}

    @torch.inference_mode()
    def warm_up(self, encoder: Encoder) -> None:
        """Capture the encoder's buckets and time them.

        Raises:
            SettingsError: a required bucket could not be captured.
        """
        encoder.warm_up()
        name = encoder.card.name
        self._figures[name] = GraphFigures()
        graphs = self._captured(encoder)
        if isinstance(graphs, str):
            missing = [f"all: {graphs}"]
            _log.info("%s runs eagerly: %s", name, graphs)
        else:
            self._sets[name] = graphs
            missing = [f"{bucket.units} units: {reason}" for bucket, reason in graphs.missing.items()]
            self._figures[name] = GraphFigures(graphs=len(graphs.captured), memory=graphs.memory())
            _log.info("%s: %s", name, self._figures[name])
        if missing and self._plan.required:
            raise SettingsError(f"graphs of {name} that are required are missing: {'; '.join(missing)}")

    @torch.inference_mode()
    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        """Packed rows [sum of tokens, hidden], which no later run writes to."""
        name = encoder.card.name
        graphs, figures = self._sets.get(name), self._figures[name]
        bucket = None if graphs is None else graphs.bucket_for(inputs)
        if graphs is None or bucket is None:
            figures.misses += 1
            return encoder.forward(inputs)
        units = graphs.units_of(inputs)
        if not graphs.calibration.pays(bucket.units, units):
            figures.declined += 1
            return encoder.forward(inputs)
        figures.hits += 1
        figures.units += units
        figures.padding += bucket.units - units
        return graphs.run(bucket, inputs)

    def figures(self, encoder: str) -> GraphFigures:
        """A copy of an encoder's figures. Safe from any thread."""
        return replace(self._figures[encoder])

    def all_figures(self) -> dict[str, GraphFigures]:
        """Copies of the figures of every encoder that was warmed up. Safe from any thread."""
        return {name: replace(figures) for name, figures in self._figures.copy().items()}

    def _captured(self, encoder: Encoder) -> GraphSet | str:
        """The encoder's captures, or why it has none."""
        if not isinstance(encoder, Capturable):
            return "this encoder has no form that can be captured"
        form, dtype = encoder.graph_form, getattr(torch, encoder.card.dtype)
        if not self._backend.takes(form, dtype):
            return f"packed rows in {encoder.card.dtype} cannot be captured here"
        wanted = self._plan.buckets(form)
        if not wanted:
            return f"a batch may not even have the {form.smallest} units of the smallest graph"
        try:
            graphs = GraphSet(encoder, encoder.sample(), wanted, self._backend)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return f"no memory for the inputs of {wanted[-1].units} units"
        graphs.capture_all(self._plan.bounds)
        graphs.calibrate()
        return graphs
