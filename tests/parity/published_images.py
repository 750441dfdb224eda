"""transformers' side of the families that bring every image to one size: DINOv2, CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model, SiglipConfig, SiglipModel
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from gpu_worker.encoders.base import Encoder
from tests.parity.media import PHOTOS, image_company, image_item, photo_item, processed, random_sizes
from tests.parity.published import Count, Item, make_felt
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, random_image, raw_frames, raw_image

SIZES = [(1, 1), (224, 224), (256, 256), (333, 500), (500, 333), (8, 1600), (1600, 8), (3, 240), (225, 226)]
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 224,
    "patch_size": 32,
}
TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
DINOV2: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 518,
    "patch_size": 14,
    "layerscale_value": 0.7,
}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def bit_processor() -> Any:
    """The published processor of DINOv2."""
    crop = {"height": 224, "width": 224}
    return BitImageProcessorPil(size={"shortest_edge": 256}, crop_size=crop, **IMAGENET)


def saved(model: Any, processor: Any, folder: Path) -> Any:
    """The model in evaluation mode, after both were written to the folder."""
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


class PublishedTower:
    """A vision tower with its processor; ``prefix`` rows stand before the patches of an image."""

    parts = 1

    def __init__(
        self, family: str, folder: Path, tower: Any, processor: Any, *, patch: int, prefix: int
    ) -> None:
        self.family, self.folder, self.tower, self.processor = family, folder, tower, processor
        self.patch, self.prefix = patch, prefix

    def rows(self, item: Item) -> Tensor:
        """``last_hidden_state`` of every frame."""
        frames = item[1] if item[1].dim() == 4 else item[1][None]
        with torch.inference_mode():
            each = [self.tower(self._values(frame)).last_hidden_state[0] for frame in frames]
        return torch.cat(each)

    def items(self) -> list[Item]:
        """Images of odd sizes, and a video."""
        video = raw_frames(3, 90, 160), random_image(90, 160, frames=3)
        return [*(image_item(*size) for size in SIZES), video]

    def company(self) -> tuple[Item, list[list[Item]]]:
        """An image among images."""
        return image_company(400)

    def counts(self, number: int) -> Iterator[Count]:
        """Images through the processor itself, videos as their frames."""
        for index, (height, width) in enumerate(random_sizes(number, longs=(40, 150, 400))):
            shape = self._values(torch.zeros(height, width, 3, dtype=torch.uint8)).shape
            rows, columns = shape[2] // self.patch, shape[3] // self.patch
            frames = index % 4
            yield Count(
                raw=raw_frames(frames, height, width) if frames else raw_image(height, width),
                tokens=max(1, frames) * (self.prefix + rows * columns),
                grid=(max(1, frames), rows, columns),
            )

    def pixels(self, item: Item) -> Tensor:
        """[1, 3, height * width]."""
        return self._values(item[1]).flatten(2)

    def own_pixels(self, encoder: Encoder, item: Item) -> Tensor:
        """The same of ours."""
        plan = encoder.plan(item[0], NO_OPTIONS)
        return encoder.preprocess([item[1]], [plan]).tensors["images"].flatten(2)

    def spread(self) -> Tensor:
        """Levels a unit."""
        return 255.0 * torch.tensor(self.processor.image_std)[:, None]

    def _values(self, image: Tensor) -> Tensor:
        values: Tensor = processed(self.processor, [image]).pixel_values
        return values


class PublishedPhotos(PublishedTower):
    """A real checkpoint is shown real photographs."""

    def items(self) -> list[Item]:
        """The example photos, and two frames cut from them."""
        frames = torch.stack([photo_item(name)[1][:240, :300] for name in ("cat.jpg", "coffee.jpg")])
        return [*(photo_item(name) for name in PHOTOS), (raw_frames(2, 240, 300), frames)]

    def company(self) -> tuple[Item, list[list[Item]]]:
        """A photo among two of the others."""
        first, *others = (photo_item(name) for name in PHOTOS)
        return first, [others[:2], others[:0:-1]]


def small_tower(family: str, folder: Path) -> PublishedTower:
    """A small random checkpoint of the family's real config class."""
    torch.manual_seed(0)
    model: Any
    if family == "dinov2":
        processor = bit_processor()
        model = Dinov2Model(Dinov2Config(**DINOV2))
        make_felt(model)
        tower = saved(model, processor, folder)
        return PublishedTower(family, folder, tower, processor, patch=14, prefix=1)
    if family == "clip":
        model, processor = (
            CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION)),
            CLIPImageProcessorPil(),
        )
    else:
        model = SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION))
        processor = SiglipImageProcessorPil()
    make_felt(model)
    tower = saved(model, processor, folder).vision_model
    return PublishedTower(family, folder, tower, processor, patch=32, prefix=int(family == "clip"))


def real_dinov2(folder: Path) -> PublishedPhotos:
    """DINOv2-small with its real weights."""
    tower = Dinov2Model.from_pretrained(folder, dtype=torch.float32).eval()
    return PublishedPhotos("dinov2", folder, tower, bit_processor(), patch=14, prefix=1)
