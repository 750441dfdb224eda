"""What the parity tests of the Qwen-VL families share: sizes, items, and transformers' own patches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from epd.contracts.media import RawMedia
from tests.unit.tiny_checkpoints import random_picture, raw_image

#: (height, width); the small ones are shared/cases IMG-16 to IMG-20.
SIZES = [
    (8, 1600),
    (28, 26),
    (27, 332),
    (30, 305),
    (1, 1),
    (1, 150),
    (3, 240),
    (333, 500),
    (300, 410),
    (57, 800),
]

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def make_felt(module: nn.Module) -> None:
    """Weights large enough that every part of the module shows in its output."""
    for weight in module.parameters():
        nn.init.normal_(weight, mean=0.0 if weight.dim() > 1 else 0.5, std=0.1)


def image_item(height: int, width: int) -> tuple[RawMedia, Tensor]:
    return raw_image(height, width), random_picture(height, width, seed=height * width)


def processed(processor: Any, pictures: list[Tensor]) -> Any:
    arrays = [picture.numpy() for picture in pictures]
    return processor(arrays, input_data_format="channels_last", return_tensors="pt")


def random_sizes(count: int, seed: int = 5) -> Iterator[tuple[int, int]]:
    """Heights and widths up to 6000, of no more than 200 to 1."""
    chooser = random.Random(seed)
    for _ in range(count):
        long = chooser.choice([60, 300, 1500, 6000])
        height = chooser.randint(1, long)
        yield height, chooser.randint(max(1, -(-height // 200)), min(long, 200 * height))


def video_patches(processor: Any, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Patches of a video by the image processor's own numbers: each half of a patch is one frame's.

    transformers' video processor needs torchvision. A frame alone gives patches that hold it twice, so the
    two halves of a pair are taken from the patches of its two frames.
    """
    pairs = [frames[i : i + 2] for i in range(0, len(frames), 2)]
    if len(pairs[-1]) == 1:
        pairs[-1] = pairs[-1].repeat(2, 1, 1, 1)
    halves, grid = [], None
    for pair in pairs:
        one = processed(processor, list(pair))
        grid = one.image_grid_thw[0]
        values = one.pixel_values.view(2, -1, 3, 2, processor.patch_size**2)
        halves.append(torch.stack([values[0, :, :, 0], values[1, :, :, 1]], dim=2).flatten(1))
    assert grid is not None
    return torch.cat(halves), torch.tensor([[len(pairs), int(grid[1]), int(grid[2])]])
