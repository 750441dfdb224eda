"""Every family's way through preprocess and forward, on a device that may not be waited for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from epd.contracts.media import RawMedia
from gpu_worker.encoders.base import Capturable, Encoder, ItemPlan
from tests.unit.encoders.tiny_checkpoints import (
    NO_OPTIONS,
    TINY,
    raw_audio,
    raw_frames,
    raw_image,
    tiny_encoder,
)
from tests.unit.engine.graphs.blind_device import BLIND, blind

SPEECH = {"whisper", "qwen2_audio", "qwen2_5_omni_audio"}


def items_of(family: str) -> list[tuple[RawMedia, tuple[int, ...], torch.dtype]]:
    """Raw media of a batch with their shapes and dtypes."""
    if family in SPEECH:
        lengths = (16_000 * 31, 8_000, 50_000)
        return [(raw_audio(n), (n,), torch.float32) for n in lengths]
    sizes = [(300, 420), (112, 90)]
    images = [(raw_image(*size), (*size, 3), torch.uint8) for size in sizes]
    return [*images, (raw_frames(3, 60, 90), (3, 60, 90, 3), torch.uint8)]


def made(encoder: Encoder, family: str, device: str) -> tuple[list[Tensor], list[ItemPlan]]:
    items = items_of(family)
    raws = [torch.zeros(shape, dtype=dtype, device=device) for _, shape, dtype in items]
    return raws, [encoder.plan(raw, NO_OPTIONS) for raw, _, _ in items]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", TINY)
def test_neither_preprocess_nor_forward_waits_for_the_device(family: str, dtype: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    encoder = tiny_encoder(family, tmp_path, dtype)
    assert isinstance(encoder, Capturable)
    expected = encoder.forward(encoder.preprocess(*made(encoder, family, "cpu")))
    with blind(encoder) as waits:
        raws, plans = made(encoder, family, "meta")
        inputs = encoder.preprocess(raws, plans)
        assert waits.blocking == []
        assert {tensor.device for tensor in inputs.tensors.values()} == {BLIND}
        waits.copies.clear()
        waits.made_on_host.clear()
        rows = encoder.forward(inputs)
        # Nothing crosses over in a forward, and nothing is made on the host: a replay would not do it again.
        assert waits.copies == []
        assert waits.made_on_host == []
        packed = bool(encoder.graph_form.segments) and dtype == "bfloat16"
        assert any("varlen_attn" in call for call in waits.calls) is packed
    assert (rows.shape, rows.dtype, rows.device) == (expected.shape, expected.dtype, BLIND)


def test_the_blind_device_sees_what_waits(tmp_path: Path) -> None:
    """A check of the check: reading a value, a shape from values, and a plain copy."""
    with blind(tiny_encoder("clip", tmp_path)) as waits:
        there = torch.zeros(4, device=BLIND)
        with pytest.raises(Exception, match="item"):
            there.sum().item()
        with pytest.raises(Exception, match="nonzero"):
            there.nonzero()
        assert waits.blocking == []
        torch.ones(4).to(BLIND)
        assert len(waits.blocking) == 1
        torch.ones(4).to(BLIND, non_blocking=True)
        assert len(waits.blocking) == 1
        with pytest.raises(NotImplementedError):
            there.cpu()
