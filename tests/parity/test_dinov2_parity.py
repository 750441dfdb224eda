"""DINOv2: configurations, crops and preprocessor files that the common bars do not look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Dinov2Config, Dinov2ForImageClassification, Dinov2Model
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from tests.parity.media import image_item
from tests.parity.published import encode, load_ours
from tests.parity.published_images import DINOV2, SIZES, PublishedTower, bit_processor, saved, small_tower
from tests.parity.row_figures import relative_error
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, raw_image


def error_of(folder: Path, tower: Any, processor: Any, size: tuple[int, int]) -> float:
    """Our rows of one image from a checkpoint's folder, against this tower's."""
    published = PublishedTower("dinov2", folder, tower, processor, patch=14, prefix=1)
    item = image_item(*size)
    got: Tensor = encode(load_ours("dinov2", folder), [item])[0]
    return relative_error(got, published.rows(item))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PublishedTower:
    return small_tower("dinov2", tmp_path_factory.mktemp("dinov2"))


@pytest.mark.parametrize(("height", "width"), [*SIZES, (1080, 1920)])
def test_pixels_are_equal(small: PublishedTower, height: int, width: int) -> None:
    item = image_item(height, width)
    got = small.own_pixels(load_ours("dinov2", small.folder), item)
    torch.testing.assert_close(got, small.pixels(item), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_swiglu_ffn": True},
        {"qkv_bias": False, "layer_norm_eps": 1e-5},
        {"image_size": 224, "patch_size": 28},
    ],
    ids=["plain", "gated", "no bias", "large patches"],
)
def test_other_configurations_are_equal(tmp_path: Path, changes: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = saved(Dinov2Model(Dinov2Config(**DINOV2 | changes)), bit_processor(), tmp_path)
    assert error_of(tmp_path, model, bit_processor(), (200, 300)) <= 1e-4


def test_a_classifiers_backbone_is_found(tmp_path: Path) -> None:
    model = saved(Dinov2ForImageClassification(Dinov2Config(**DINOV2)), bit_processor(), tmp_path)
    assert error_of(tmp_path, model.dinov2, bit_processor(), (100, 100)) <= 1e-4


def test_the_preprocessor_file_is_obeyed(tmp_path: Path) -> None:
    crop = {"height": 84, "width": 56}
    other = BitImageProcessorPil(
        size={"shortest_edge": 100}, crop_size=crop, resample=2, image_std=[0.5, 0.4, 0.3]
    )
    model = saved(Dinov2Model(Dinov2Config(**DINOV2)), other, tmp_path)
    assert error_of(tmp_path, model, other, (120, 90)) <= 1e-4
    plan = load_ours("dinov2", tmp_path).plan(raw_image(120, 90), NO_OPTIONS)
    assert plan.facts.grid_thw == (1, 6, 4)
