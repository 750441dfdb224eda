"""transformers' side of the Qwen-VL families: small models of the real config classes, and their patches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

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


#: The published image processors' numbers.
OLDER_IMAGE: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 12845056}
IMAGE: dict[str, dict[str, Any]] = {
    "qwen2_vl": OLDER_IMAGE,
    "qwen2_5_vl": OLDER_IMAGE,
    "qwen3_vl": {
        "patch_size": 16,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
}


def small_model(family: str) -> Any:
    """A whole model of the family with a tower of a few blocks, random and in evaluation mode."""
    torch.manual_seed(0)
    wide: dict[str, Any] = {
        "hidden_size": 80,
        "intermediate_size": 120,
        "num_heads": 4,
        "out_hidden_size": 32,
    }
    model: Any
    if family == "qwen2_vl":
        vision: dict[str, Any] = {
            "depth": 3,
            "embed_dim": 80,
            "mlp_ratio": 2,
            "num_heads": 4,
            "hidden_size": 32,
        }
        model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=TEXT, vision_config=vision))
    elif family == "qwen2_5_vl":
        vision = wide | {"fullatt_block_indexes": [1, 3]}
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision))
    else:
        vision = wide | {"num_position_embeddings": 144, "deepstack_visual_indexes": [0, 2]}
        text = TEXT | {"head_dim": 16}
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision))
    make_felt(model.model.visual)
    return model.eval()


def tower_rows(tower: Any, patches: Tensor, grid: Tensor) -> Tensor:
    """The merged rows and then each deepstack level's, side by side."""
    with torch.inference_mode():
        out = tower(patches, grid_thw=grid)
    return torch.cat([out.pooler_output, *getattr(out, "deepstack_features", ())], dim=1)


def make_felt(module: nn.Module) -> None:
    """Weights large enough that every part of the module shows in its output."""
    for weight in module.parameters():
        nn.init.normal_(weight, mean=0.0 if weight.dim() > 1 else 0.5, std=0.1)


def image_item(height: int, width: int) -> tuple[RawMedia, Tensor]:
    return raw_image(height, width), random_picture(height, width, seed=height * width)


def processed(processor: Any, pictures: list[Tensor], **options: object) -> Any:
    arrays = [picture.numpy() for picture in pictures]
    return processor(arrays, input_data_format="channels_last", return_tensors="pt", **options)


def random_sizes(count: int, seed: int = 5) -> Iterator[tuple[int, int]]:
    """Heights and widths up to 6000, of no more than 200 to 1."""
    chooser = random.Random(seed)
    for _ in range(count):
        long = chooser.choice([60, 300, 1500, 6000])
        height = chooser.randint(1, long)
        yield height, chooser.randint(max(1, -(-height // 200)), min(long, 200 * height))


def video_patches(processor: Any, frames: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Patches of a video at a size, by Pillow and the image processor: each half of a patch is one frame's.

    transformers' video processor needs torchvision. A frame alone gives patches that hold it twice, so the
    two halves of a pair are taken from the patches of its two frames.
    """
    shown = [Image.fromarray(frame.numpy()).resize(size[::-1], Image.Resampling.BICUBIC) for frame in frames]
    if len(shown) % 2:
        shown.append(shown[-1])
    pictures = [torch.from_numpy(np.array(picture)) for picture in shown]
    one = processed(processor, pictures, do_resize=False)
    values = one.pixel_values.view(len(pictures), -1, 3, 2, processor.patch_size**2)
    pairs = torch.stack([values[0::2, :, :, 0], values[1::2, :, :, 1]], dim=3)
    _, rows, columns = one.image_grid_thw[0].tolist()
    return pairs.flatten(0, 1).flatten(1), torch.tensor([[len(pictures) // 2, rows, columns]])
