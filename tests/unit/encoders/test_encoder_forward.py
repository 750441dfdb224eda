"""Every family on small random weights: packed equals single, shapes as planned, nothing read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from epd.contracts.media import RawMedia
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.registry import FAMILIES
from tests.unit.encoders import tiny_checkpoints as tiny

Item = tuple[RawMedia, Tensor]


def audio(samples: int, seed: int) -> Item:
    noise = torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.1
    return tiny.raw_audio(samples), noise


def image(height: int, width: int) -> Item:
    return tiny.raw_image(height, width), tiny.random_image(height, width, seed=height)


def clip(frames: int, height: int, width: int) -> Item:
    return tiny.raw_frames(frames, height, width), tiny.random_image(height, width, frames=frames)


ITEMS: dict[str, Callable[[], list[Item]]] = {
    "whisper": lambda: [audio(20000, 1), audio(500000, 2), audio(1, 3)],
    "qwen2_audio": lambda: [audio(20000, 1), audio(500000, 2), audio(321, 3)],
    "qwen2_5_omni_audio": lambda: [audio(20000, 1), audio(100000, 2), audio(321, 3), audio(32001, 4)],
    "dinov2": lambda: [image(50, 70), clip(3, 40, 90), image(1, 1), image(400, 9)],
    "qwen2_5_vl": lambda: [image(50, 300), clip(5, 60, 90), image(1, 1), image(300, 300)],
    "qwen2_vl": lambda: [image(50, 300), clip(5, 60, 90), image(1, 1), image(300, 300)],
    "clip": lambda: [image(50, 70), clip(3, 40, 90), image(1, 1), image(400, 9)],
    "siglip": lambda: [image(50, 70), clip(3, 40, 90), image(1, 1), image(400, 9)],
    "qwen3_vl": lambda: [image(50, 300), clip(5, 60, 90), image(1, 1), clip(1, 300, 300)],
}

#: The packed tensor of each family that holds what was heard or seen.
MEDIA_TENSOR = {"whisper": "mel", "qwen2_audio": "mel", "qwen2_5_omni_audio": "mel"} | {
    "dinov2": "images",
    "clip": "images",
    "siglip": "images",
    "qwen2_5_vl": "patches",
    "qwen2_vl": "patches",
    "qwen3_vl": "patches",
}


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder: Path = tmp_path_factory.mktemp("forward")
    return tiny.tiny_encoder(request.param, folder)


def encode(encoder: Encoder, items: list[Item]) -> list[Tensor]:
    plans = [encoder.plan(raw, tiny.NO_OPTIONS) for raw, _ in items]
    rows = encoder.forward(encoder.preprocess([data for _, data in items], plans))
    return list(rows.split([plan.tokens for plan in plans]))


def test_packed_equals_single(encoder: Encoder) -> None:
    items = ITEMS[encoder.card.family]()
    for got, item in zip(encode(encoder, items), items, strict=True):
        assert got.shape[1] == encoder.card.hidden
        torch.testing.assert_close(got, encode(encoder, [item])[0], atol=1e-5, rtol=1e-5)


def test_order_does_not_matter(encoder: Encoder) -> None:
    items = ITEMS[encoder.card.family]()
    backwards = encode(encoder, items[::-1])[::-1]
    for got, other in zip(encode(encoder, items), backwards, strict=True):
        torch.testing.assert_close(got, other, atol=1e-5, rtol=1e-5)


def test_one_item_more_or_less_changes_no_other(encoder: Encoder) -> None:
    items = ITEMS[encoder.card.family]()
    whole, fewer = encode(encoder, items), encode(encoder, items[1:])
    for got, other in zip(whole[1:], fewer, strict=True):
        torch.testing.assert_close(got, other, atol=1e-5, rtol=1e-5)


def test_different_media_give_different_rows(encoder: Encoder) -> None:
    raw, data = ITEMS[encoder.card.family]()[0]
    changed = data.flip(0)
    rows, other = encode(encoder, [(raw, data)])[0], encode(encoder, [(raw, changed)])[0]
    assert not torch.allclose(rows, other, atol=1e-3)


def test_a_poisoned_item_spoils_no_other(encoder: Encoder) -> None:
    """NaN in one item's inputs stays in its rows: audio can hold it, pixels are poisoned after packing."""
    items = ITEMS[encoder.card.family]()
    plans = [encoder.plan(raw, tiny.NO_OPTIONS) for raw, _ in items]
    inputs = encoder.preprocess([data for _, data in items], plans)
    clean = encoder.forward(inputs).split([plan.tokens for plan in plans])
    name = MEDIA_TENSOR[encoder.card.family]
    rows = inputs.tensors[name].clone()
    shares = [len(plan.segments) if name == "mel" else plan.cost for plan in plans]
    rows[: rows.shape[0] * shares[0] // sum(shares)] = float("nan")
    spoilt = encoder.forward(replace(inputs, tensors={**inputs.tensors, name: rows}))
    parts = spoilt.split([plan.tokens for plan in plans])
    assert bool(parts[0].isnan().all())
    for got, wanted in zip(parts[1:], clean[1:], strict=True):
        assert torch.equal(got, wanted)


def test_warm_up_works_before_any_item(encoder: Encoder) -> None:
    encoder.warm_up()


class ReadBacks(TorchDispatchMode):
    """Counts operations that read device data on the host, or whose shape depends on data."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if any(read in name for read in self.READS):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_the_counter_sees_a_read_back() -> None:
    with ReadBacks() as counter, torch.inference_mode():
        torch.arange(3).sum().item()
    assert counter.seen


def test_forward_reads_nothing_back(encoder: Encoder) -> None:
    """What a CUDA graph needs: no host read of device data and no shape that depends on data."""
    items = ITEMS[encoder.card.family]()
    plans = [encoder.plan(raw, tiny.NO_OPTIONS) for raw, _ in items]
    inputs = encoder.preprocess([data for _, data in items], plans)
    with ReadBacks() as counter:
        encoder.forward(inputs)
    assert counter.seen == []


def test_bfloat16_is_close_to_float32(encoder: Encoder, tmp_path: Path) -> None:
    family = encoder.card.family
    items = ITEMS[family]()
    half = tiny.tiny_encoder(family, tmp_path, dtype="bfloat16")
    for rows, exact in zip(encode(half, items), encode(encoder, items), strict=True):
        assert rows.dtype == torch.bfloat16
        alike = torch.nn.functional.cosine_similarity(rows.float().flatten(), exact.flatten(), dim=0)
        assert float(alike) > 0.995
