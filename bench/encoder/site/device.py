"""An encoder with a stated cost in place of a real one: the device is simulated, all else is production code.

A forward sleeps, which releases the GIL as waiting for a device does. Nothing reads the raw media, so their
pages are never mapped into the GPU worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epd.contracts.embedding import AudioRules, EncoderCard, ImageRules, VideoRules
from epd.contracts.media import ItemOptions, Modality, RawMedia
from gpu_worker.encoders.base import Inputs, ItemPlan

NAME = "device"
HIDDEN = 8

#: The config file of a stack with a simulated device. The path is never opened.
CONFIG = f"""
default_model = "{NAME}"
[encoders.{NAME}]
family = "simulated"
path = "none"
[models.{NAME}]
image = "{NAME}"
video = "{NAME}"
audio = "{NAME}"
"""

#: The environment that lets Celery use the pool of ``python -m gpu_worker``.
POOL = {"CELERY_CUSTOM_WORKER_POOL": "gpu_worker.pool.batch_pool:BatchPool"}

CARD = EncoderCard(
    name=NAME,
    family="simulated",
    modalities=(Modality.IMAGE, Modality.VIDEO, Modality.AUDIO),
    hidden=HIDDEN,
    dtype="float32",
    weights_digest="0" * 64,
    preprocess_revision="1",
    image=ImageRules(),
    video=VideoRules(fps=2.0, min_frames=4, max_frames=64),
    audio=AudioRules(sample_rate=16_000),
)


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Milliseconds of a forward: ``batch_ms`` for each batch, and ``item_ms`` for each of its items."""

    batch_ms: float = 0.0
    item_ms: float = 0.0

    def seconds(self, items: int) -> float:
        """The time of a forward of so many items."""
        return (self.batch_ms + self.item_ms * items) / 1000

    def __str__(self) -> str:
        return f"simulated device: {self.batch_ms:g} ms a batch, {self.item_ms:g} ms an item"


class SimulatedEncoder:
    """An ``Encoder`` that gives one row of zeros for each item, after the time of its model."""

    card = CARD

    def __init__(self, model: DeviceModel) -> None:
        self._model = model

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """One row for any media; any two items may share a batch."""
        return ItemPlan(tokens=1, cost=1, bucket=None)

    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Keep only the number of items."""
        return Inputs(tensors={}, layout={"items": (len(plans),)})

    def forward(self, inputs: Inputs) -> Tensor:
        """Zeros [items, hidden], float32."""
        items = inputs.layout["items"][0]
        if seconds := self._model.seconds(items):
            time.sleep(seconds)
        return torch.zeros(items, HIDDEN)

    def warm_up(self) -> None:
        """Does nothing."""
