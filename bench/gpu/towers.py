"""The measured towers, each with the item that it encodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench.gpu import building as sizes
from bench.gpu.building import Place, random_dinov2, random_qwen2_5_vl, random_qwen3_vl, random_whisper
from bench.gpu.target import Target
from epd.contracts.media import BlobRef, ItemOptions, RawAudio, RawImage
from gpu_worker.encoders.base import Capturable, Inputs

_BLOB = BlobRef(name="random", nbytes=1)
_RATE = 16_000  #: Hz, of all speech encoders


@dataclass(frozen=True, kw_only=True, slots=True)
class Tower:
    """A tower of one size. ``item`` is the size of what it encodes; ``build`` makes it on any device."""

    name: str
    item: RawImage | RawAudio
    build: Callable[[Place], Capturable]

    def on(self, target: Target) -> Capturable:
        """The encoder on the device of the benchmark."""
        return self.build(Place(target.device, target.dtype))

    def items(self, encoder: Capturable, count: int) -> Inputs:
        """A packed batch of random items, preprocessed on the encoder's device."""
        device = torch.device(encoder.card.device)
        raws = [random_raw(self.item, seed).to(device) for seed in range(count)]
        return encoder.preprocess(raws, [encoder.plan(self.item, ItemOptions())] * count)

    def operations(self, inputs: Inputs) -> int:
        """Floating-point operations of one forward, counted from the tower's own calls on ``meta`` tensors.

        A multiplication and its addition count as two. Only matrix products, convolutions and attention
        inside segments are counted.
        """
        shapes = self.build(Place(torch.device("meta"), torch.float32))
        on_meta = {
            name: torch.empty_like(tensor, device="meta", dtype=_counted(tensor.dtype))
            for name, tensor in inputs.tensors.items()
        }
        with FlopCounterMode(display=False) as counter:
            shapes.forward(replace(inputs, tensors=on_meta))
        return int(counter.get_total_flops())


def random_raw(item: RawImage | RawAudio, seed: int) -> Tensor:
    """Random pixels uint8 [H, W, 3], or noise float32 [samples], in host memory."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(item, RawAudio):
        return torch.randn(item.samples, generator=generator) * 0.1
    return torch.randint(0, 256, (item.height, item.width, 3), dtype=torch.uint8, generator=generator)


def image(height: int, width: int) -> RawImage:
    """The size of an image."""
    return RawImage(blob=_BLOB, height=height, width=width, original_size=(width, height))


def audio(seconds: int) -> RawAudio:
    """The size of audio."""
    return RawAudio(blob=_BLOB, samples=seconds * _RATE, sample_rate=_RATE)


def _counted(dtype: torch.dtype) -> torch.dtype:
    """float32 for values; indices and offsets keep their integer type."""
    return torch.float32 if dtype.is_floating_point else dtype


#: Every tower gives 256 or 257 rows for an image, or 1500 for a window.
TOWERS = (
    Tower(
        name="whisper-tiny",
        item=audio(30),
        build=partial(random_whisper, "whisper-tiny", sizes.WHISPER_TINY),
    ),
    Tower(
        name="dinov2-small",
        item=image(256, 256),
        build=partial(random_dinov2, "dinov2-small", sizes.DINOV2_SMALL),
    ),
    Tower(
        name="qwen2.5-vl-3b",
        item=image(448, 448),
        build=partial(random_qwen2_5_vl, "qwen2.5-vl-3b", sizes.QWEN2_5_VL_3B),
    ),
    Tower(
        name="qwen2.5-vl-7b",
        item=image(448, 448),
        build=partial(random_qwen2_5_vl, "qwen2.5-vl-7b", sizes.QWEN2_5_VL_7B),
    ),
    Tower(
        name="qwen3-vl-4b",
        item=image(512, 512),
        build=partial(random_qwen3_vl, "qwen3-vl-4b", sizes.QWEN3_VL_4B),
    ),
    Tower(
        name="qwen3-vl-8b",
        item=image(512, 512),
        build=partial(random_qwen3_vl, "qwen3-vl-8b", sizes.QWEN3_VL_8B),
    ),
)

TINY_TOWERS = (
    Tower(name="whisper", item=audio(1), build=partial(random_whisper, "whisper", sizes.TINY_WHISPER)),
    Tower(name="dinov2", item=image(30, 40), build=partial(random_dinov2, "dinov2", sizes.TINY_DINOV2)),
    Tower(
        name="qwen2.5-vl",
        item=image(112, 112),
        build=partial(random_qwen2_5_vl, "qwen2.5-vl", sizes.TINY_QWEN2_5_VL),
    ),
    Tower(
        name="qwen3-vl",
        item=image(256, 256),
        build=partial(random_qwen3_vl, "qwen3-vl", sizes.TINY_QWEN3_VL),
    ),
)
