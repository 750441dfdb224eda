"""CLIP's and SigLIP's vision towers: checkpoints of other kinds than the common bars look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from tests.parity.media import image_item, random_sizes
from tests.parity.published import encode, load_ours, make_felt
from tests.parity.published_images import SIZES, VISION, PublishedTower, saved, small_tower
from tests.parity.row_figures import relative_error


def error_of(family: str, folder: Path, model: Any, processor: Any, size: tuple[int, int]) -> float:
    """Our rows of one image from the model's folder, against the model's own."""
    make_felt(model)
    tower = getattr(saved(model, processor, folder), "vision_model", model)
    published = PublishedTower(family, folder, tower, processor, patch=32, prefix=0)
    item = image_item(*size)
    return relative_error(encode(load_ours(family, folder), [item])[0], published.rows(item))


@pytest.mark.parametrize(("family", "rows"), [("clip", 50), ("siglip", 49)])
def test_pixels_and_rows_of_an_image(tmp_path: Path, family: str, rows: int) -> None:
    small = small_tower(family, tmp_path)
    encoder = load_ours(family, tmp_path)
    assert encode(encoder, [image_item(30, 40)])[0].shape == (rows, VISION["hidden_size"])
    for height, width in [*SIZES, *(size for size in random_sizes(60) if max(size) <= 1500)]:
        item = image_item(height, width)
        got = small.own_pixels(encoder, item)
        torch.testing.assert_close(got, small.pixels(item), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("family", "make"),
    [
        ("clip", lambda: CLIPVisionModel(CLIPVisionConfig(**VISION, hidden_act="gelu"))),
        ("clip", lambda: CLIPVisionModelWithProjection(CLIPVisionConfig(**VISION))),
        ("siglip", lambda: SiglipVisionModel(SiglipVisionConfig(**VISION, vision_use_head=False))),
        ("siglip", lambda: SiglipVisionModel(SiglipVisionConfig(**VISION | {"patch_size": 30}))),
    ],
    ids=["clip tower with gelu", "clip with projection", "siglip without head", "siglip with a margin"],
)
def test_towers_saved_alone_are_equal(tmp_path: Path, family: str, make: Any) -> None:
    torch.manual_seed(1)
    processor = CLIPImageProcessorPil() if family == "clip" else SiglipImageProcessorPil()
    assert error_of(family, tmp_path, make(), processor, (200, 300)) <= 1e-4


def test_the_preprocessor_file_is_obeyed(tmp_path: Path) -> None:
    model = CLIPVisionModel(CLIPVisionConfig(**VISION | {"image_size": 96}))
    crop = {"height": 96, "width": 96}
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 120}, crop_size=crop, resample=2, image_std=[0.5, 0.4, 0.3]
    )
    assert error_of("clip", tmp_path, model, processor, (120, 190)) <= 1e-4
