"""What every family's reference gives: transformers' own rows, counts and inputs of one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from epd.config import EncoderConfig
from epd.contracts.media import RawMedia
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.registry import load_encoder
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS

#: What decode hands on: the facts of a raw, and its values as a tensor.
Item = tuple[RawMedia, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """What the published processor makes of a size. ``tokens`` 0: nothing, and an encoder must refuse it."""

    raw: RawMedia
    tokens: int
    grid: tuple[int, int, int] | None = None
    lengths: tuple[int, ...] | None = None


class Published(Protocol):
    """transformers' side of one checkpoint. ``parts``: equal parts of a row, each compared on its own."""

    family: str
    folder: Path
    parts: int

    def rows(self, item: Item) -> Tensor:
        """float32 [tokens, width]: what the language model is given, or ``last_hidden_state``."""
        ...

    def items(self) -> list[Item]:
        """Media of odd sizes."""
        ...

    def company(self) -> tuple[Item, list[list[Item]]]:
        """One item, and neighbours for it by batches, many of which fill one bucket."""
        ...

    def counts(self, number: int) -> Iterator[Count]:
        """So many random sizes of each kind of media, always the same ones."""
        ...


@runtime_checkable
class PublishedImages(Published, Protocol):
    """The side of a family that takes images."""

    def pixels(self, item: Item) -> Tensor:
        """Normalised values of one image: float [..., 3, n]."""
        ...

    def own_pixels(self, encoder: Encoder, item: Item) -> Tensor:
        """The same of an encoder of ours."""
        ...

    def spread(self) -> Tensor:
        """Levels of 255 that one unit of a normalised value stands for: float [3, 1]."""
        ...


@runtime_checkable
class PublishedAudios(Published, Protocol):
    """The side of a family that takes audio."""

    def mel(self, item: Item) -> Tensor:
        """float32 [bins, frames] of real audio, or with the silence behind it where the family keeps that."""
        ...

    def own_mel(self, encoder: Encoder, item: Item) -> Tensor:
        """The same of an encoder of ours."""
        ...


def load_ours(family: str, folder: Path, dtype: str = "float32") -> Encoder:
    """Our encoder of a checkpoint's folder, on the CPU."""
    settings = {"family": family, "path": folder, "dtype": dtype, "device": "cpu"}
    return load_encoder(family, EncoderConfig.model_validate(settings))


def encode(encoder: Encoder, items: list[Item]) -> list[Tensor]:
    """Rows of items that are packed into one forward."""
    plans = [encoder.plan(raw, NO_OPTIONS) for raw, _ in items]
    rows = encoder.forward(encoder.preprocess([data for _, data in items], plans))
    return list(rows.split([plan.tokens for plan in plans]))


def make_felt(module: nn.Module) -> None:
    """Weights large enough that every part of the module shows in its output."""
    for weight in module.parameters():
        nn.init.normal_(weight, mean=0.0 if weight.dim() > 1 else 0.5, std=0.1)


def sharpen(module: nn.Module) -> None:
    """Wider matrices: the initialiser's 0.02 leaves attention nearly flat, and its masks without effect."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name.endswith("weight") and value.dim() == 2:
                value.mul_(6.0)
