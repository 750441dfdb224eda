"""transformers' side of the Qwen-VL families: small models of the real config classes, and their patches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as frame_resize

from epd.contracts.media import RawFrames
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.qwen.encoder import QwenEncoder
from tests.parity.media import image_company, image_item, processed, random_sizes
from tests.parity.published import Count, Item, make_felt
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, random_image, raw_frames, raw_image

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")

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

WIDE: dict[str, Any] = {"hidden_size": 80, "intermediate_size": 120, "num_heads": 4, "out_hidden_size": 32}


def small_model(family: str) -> Any:
    """A whole model of the family with a tower of a few blocks, random and in evaluation mode."""
    torch.manual_seed(0)
    model: Any
    vision: dict[str, Any]
    if family == "qwen2_vl":
        vision = {
            "depth": 3,
            "embed_dim": 80,
            "mlp_ratio": 2,
            "num_heads": 4,
            "hidden_size": 32,
        }
        model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=TEXT, vision_config=vision))
    elif family == "qwen2_5_vl":
        vision = WIDE | {"fullatt_block_indexes": [1, 3]}
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision))
    else:
        vision = WIDE | {"num_position_embeddings": 144, "deepstack_visual_indexes": [0, 2]}
        text = TEXT | {"head_dim": 16}
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision))
    make_felt(model.model.visual)
    return model.eval()


class PublishedQwen:
    """A folder as ``save_pretrained`` writes it, the tower, the image processor, and the rules of sizes."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family, self.folder = family, folder
        model, self.processor = small_model(family), Qwen2VLImageProcessorPil(**IMAGE[family])
        model.save_pretrained(folder)
        self.processor.save_pretrained(folder)
        self.tower = model.model.visual
        self.patch = int(self.processor.patch_size)
        self.levels = 2 if family == "qwen3_vl" else 0
        self.parts = 1 + self.levels

    def rows(self, item: Item) -> Tensor:
        """The merged rows and then each deepstack level's, side by side."""
        patches, grid = self._patches(item)
        with torch.inference_mode():
            out = self.tower(patches, grid_thw=grid)
        return torch.cat([out.pooler_output, *getattr(out, "deepstack_features", ())], dim=1)

    def items(self) -> list[Item]:
        """Images of odd sizes, and videos of even and odd numbers of frames."""
        videos = [self.video(frames, 90 * frames, 160) for frames in (2, 5)]
        return [*(image_item(*size) for size in SIZES), *videos]

    def video(self, frames: int, height: int, width: int) -> Item:
        """Random frames, two a second."""
        return raw_frames(frames, height, width, fps=2.0), random_image(
            height, width, frames=frames, seed=frames
        )

    def company(self) -> tuple[Item, list[list[Item]]]:
        """An image among images, and next to a video."""
        image, crowds = image_company(240)
        return image, [*crowds, [self.video(3, 60, 90), image_item(100, 130)]]

    def counts(self, number: int) -> Iterator[Count]:
        """Images and videos."""
        chooser, frame_counts = random.Random(6), [2, 4, 5, 7, 40, 101, 768]
        for height, width in random_sizes(number):
            yield self._count(raw_image(height, width), 1, self.image_size(height, width))
        for height, width in random_sizes(number):
            frames = chooser.choice(frame_counts)
            raw = raw_frames(frames, height, width)
            try:
                yield self._count(raw, -(-frames // 2), self.frame_size(frames, height, width))
            except (
                ValueError
            ):  # Qwen3-VL thinks a thin frame enlarged, and rounding may take it above 200 to 1
                yield Count(raw=raw, tokens=0)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """By the processor's own function and numbers."""
        size: dict[str, int] = self.processor.size
        low, high = size["shortest_edge"], size["longest_edge"]
        wanted: tuple[int, int] = smart_resize(height, width, 2 * self.patch, low, high)
        return wanted

    def frame_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """As the published rules have it where no file says otherwise; raises ``ValueError``.

        Qwen2-VL and 2.5 with ``cap_pixels_per_frame``, which is what qwen-vl-utils does. The module of their
        video processor needs torchvision, so its four lines around ``smart_resize`` stand here.
        """
        cell = (2 * self.patch) ** 2
        if self.family == "qwen3_vl":
            size: tuple[int, int] = frame_resize(frames, height, width, 2, 32, 128 * cell, 768 * cell)
            return size
        total = int(128_000 * cell * 0.9)
        most = max(min(768 * cell, total * 2 // frames), int(128 * cell * 1.05))
        size = smart_resize(height, width, 28, 128 * cell, most)
        return size

    def pixels(self, item: Item) -> Tensor:
        """Patches' values by colour: [patches, 3, n]."""
        return self._by_colour(processed(self.processor, [item[1]]).pixel_values)

    def own_pixels(self, encoder: Encoder, item: Item) -> Tensor:
        """The same of ours, before the tower's own order."""
        assert isinstance(encoder, QwenEncoder)
        return self._by_colour(encoder.patches(item[1], encoder.plan(item[0], NO_OPTIONS)))

    def spread(self) -> Tensor:
        """Levels a unit."""
        return 255.0 * torch.tensor(self.processor.image_std)[:, None]

    def _by_colour(self, patches: Tensor) -> Tensor:
        return patches.view(len(patches), 3, -1)

    def _count(self, raw: Any, steps: int, size: tuple[int, int]) -> Count:
        rows, columns = size[0] // self.patch, size[1] // self.patch
        return Count(raw=raw, tokens=steps * rows * columns // 4, grid=(steps, rows, columns))

    def _patches(self, item: Item) -> tuple[Tensor, Tensor]:
        raw, data = item
        if isinstance(raw, RawFrames):
            return video_patches(self.processor, data, self.frame_size(raw.frames, raw.height, raw.width))
        made = processed(self.processor, [data])
        return made.pixel_values, made.image_grid_thw


def video_patches(processor: Any, frames: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Patches of a video at a size, by Pillow and the image processor: each half of a patch is one frame's.

    transformers' video processor needs torchvision. A frame alone gives patches that hold it twice, so the
    two halves of a pair are taken from the patches of its two frames.
    """
    shown = [Image.fromarray(frame.numpy()).resize(size[::-1], Image.Resampling.BICUBIC) for frame in frames]
    if len(shown) % 2:
        shown.append(shown[-1])
    images = [torch.from_numpy(np.array(image)) for image in shown]
    one = processed(processor, images, do_resize=False)
    values = one.pixel_values.view(len(images), -1, 3, 2, processor.patch_size**2)
    pairs = torch.stack([values[0::2, :, :, 0], values[1::2, :, :, 1]], dim=3)
    _, rows, columns = one.image_grid_thw[0].tolist()
    return pairs.flatten(0, 1).flatten(1), torch.tensor([[len(images) // 2, rows, columns]])
