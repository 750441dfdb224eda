"""An encoder that costs nothing: one row an item. It leaves what the worker around it costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from epd.contracts.embedding import EncoderCard, ImageRules
from epd.contracts.media import ItemOptions, Modality, RawMedia
from gpu_worker.encoders.base import Inputs, ItemPlan

NAME = "zero"
HIDDEN = 8

#: The config file of every process of the benchmark. The path is never opened.
CONFIG = f"""
default_model = "ceiling"
[encoders.{NAME}]
family = "zero"
path = "none"
[models.ceiling]
image = "{NAME}"
"""

CARD = EncoderCard(
    name=NAME,
    family="zero",
    modalities=(Modality.IMAGE,),
    hidden=HIDDEN,
    dtype="float32",
    weights_digest="0" * 64,
    preprocess_revision="1",
    image=ImageRules(),
)


class ZeroCostEncoder:
    """The ``Encoder`` seam, with empty work behind it."""

    card = CARD

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """One row for any media."""
        return ItemPlan(tokens=1, cost=1, bucket=None)

    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Only the number of items goes on."""
        return Inputs(tensors={}, layout={"items": (len(plans),)})

    def forward(self, inputs: Inputs) -> Tensor:
        """Zeros [items, hidden], float32."""
        return torch.zeros(inputs.layout["items"][0], HIDDEN)

    def warm_up(self) -> None:
        """Nothing has to be warm."""
