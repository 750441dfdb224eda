"""How a packed batch is run: the seam where a runner that replays captured graphs can take its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.engine.graphs.figures import GraphFigures


class Runner(Protocol):
    """Runs forwards on the thread that owns the device."""

    def warm_up(self, encoder: Encoder) -> None:
        """All that makes the first real batch as fast as the later ones. Called once an encoder."""
        ...

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        """Packed rows [sum of tokens, hidden]. They are the caller's: a later run never writes to them."""
        ...

    def all_figures(self) -> Mapping[str, GraphFigures]:
        """What captured forwards did for each encoder. May be called from any thread."""
        ...


class EagerRunner:
    """Calls the encoder's forward as it is."""

    def warm_up(self, encoder: Encoder) -> None:
        """One small forward."""
        encoder.warm_up()

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        """The encoder's own forward; its output is a new tensor each time."""
        return encoder.forward(inputs)

    def all_figures(self) -> Mapping[str, GraphFigures]:
        """None: nothing is captured."""
        return {}
