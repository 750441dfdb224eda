"""Images and sizes for the parity tests: odd ones, those of known faults, and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.parity.published import Item
from tests.unit.encoders.tiny_checkpoints import random_image, raw_image

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "media"
PHOTOS = ("astronaut.jpg", "cat.jpg", "coffee.jpg", "rocket.jpg")


def image_item(height: int, width: int) -> Item:
    return raw_image(height, width), random_image(height, width, seed=height * width)


def photo_item(name: str) -> Item:
    image = torch.from_numpy(np.array(Image.open(EXAMPLES / name).convert("RGB")))
    return raw_image(image.shape[0], image.shape[1]), image


def processed(processor: Any, images: list[Tensor], **options: object) -> Any:
    """What a published image processor makes of images that are decoded already."""
    arrays = [image.numpy() for image in images]
    return processor(arrays, input_data_format="channels_last", return_tensors="pt", **options)


def random_sizes(
    count: int, seed: int = 5, longs: tuple[int, ...] = (60, 300, 1500, 6000)
) -> Iterator[tuple[int, int]]:
    """Heights and widths up to the largest of ``longs``, of no more than 200 to 1."""
    chooser = random.Random(seed)
    for _ in range(count):
        long = chooser.choice(longs)
        height = chooser.randint(1, long)
        yield height, chooser.randint(max(1, -(-height // 200)), min(long, 200 * height))


def image_company(longest: int, seed: int = 8) -> tuple[Item, list[list[Item]]]:
    """An image, and one to three others at a time, of other sizes and contents in each batch."""
    chooser = random.Random(seed)

    def neighbour() -> Item:
        return image_item(chooser.randint(longest // 4, longest), chooser.randint(longest // 4, longest))

    crowds = [[neighbour() for _ in range(count)] for count in (1, 2, 3, 3)]
    return image_item(167, 203), crowds
