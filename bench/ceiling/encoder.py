"""An encoder that costs nothing: one row for each item. What is left is the cost of the worker around it."""

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
    """An ``Encoder`` that does nothing."""

    card = CARD

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """One row for any media."""
        return ItemPlan(tokens=1, cost=1, bucket=None)

    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Keep only the number of items."""
        return Inputs(tensors={}, layout={"items": (len(plans),)})

    def forward(self, inputs: Inputs) -> Tensor:
        """Zeros [items, hidden], float32."""
        return torch.zeros(inputs.layout["items"][0], HIDDEN)

    def warm_up(self) -> None:
        """Does nothing."""
