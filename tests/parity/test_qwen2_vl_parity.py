"""Qwen2-VL's tower on a small random checkpoint of the real config class, against transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from gpu_worker.encoders.base import Encoder
from tests.parity.qwen_kit import (
    SIZES,
    TEXT,
    image_item,
    make_felt,
    processed,
    random_sizes,
    video_patches,
)
from tests.unit.tiny_checkpoints import NO_OPTIONS, random_picture, raw_frames, raw_image

#: The pixel bounds of the published Qwen2-VL checkpoints.
BOUNDS = {"min_pixels": 3136, "max_pixels": 12845056}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder as ``save_pretrained`` writes it, and transformers' tower."""
    torch.manual_seed(0)
    vision = {"depth": 3, "embed_dim": 80, "mlp_ratio": 2, "num_heads": 4, "hidden_size": 32}
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=TEXT, vision_config=vision)).eval()
    make_felt(model.model.visual)
    folder = tmp_path_factory.mktemp("qwen2")
    model.save_pretrained(folder)
    Qwen2VLImageProcessorPil(**BOUNDS).save_pretrained(folder)
    return folder, model.model.visual


@pytest.fixture(scope="module")
def processor() -> Any:
    return Qwen2VLImageProcessorPil(**BOUNDS)


@pytest.fixture(scope="module")
def ours(checkpoint: tuple[Path, Any], load: Callable[..., Encoder]) -> Encoder:
    return load("qwen2_vl", checkpoint[0])


def test_grids_are_equal_for_500_random_sizes(ours: Encoder) -> None:
    for height, width in random_sizes(500):
        size = smart_resize(height, width, 28, 3136, 12845056)
        plan = ours.plan(raw_image(height, width), NO_OPTIONS)
        assert plan.facts.grid_thw == (1, size[0] // 14, size[1] // 14), (height, width)
        assert plan.tokens == size[0] * size[1] // 784


def test_embeddings_of_mixed_images_are_equal(
    ours: Encoder, processor: Any, checkpoint: tuple[Path, Any], encode: Any, relative: Any
) -> None:
    items = [image_item(*size) for size in SIZES]
    wanted = processed(processor, [picture for _, picture in items])
    with torch.inference_mode():
        rows = checkpoint[1](wanted.pixel_values, grid_thw=wanted.image_grid_thw).pooler_output
    assert relative(torch.cat(encode(ours, items)), rows) <= 1e-4


@pytest.mark.parametrize("frames", [2, 5])
def test_videos_are_equal(
    ours: Encoder, checkpoint: tuple[Path, Any], encode: Any, relative: Any, frames: int
) -> None:
    data = random_picture(270, 480, frames=frames, seed=frames)
    bounds = Qwen2VLImageProcessorPil(min_pixels=128 * 28 * 28, max_pixels=768 * 28 * 28)
    patches, grid = video_patches(bounds, data)
    raw = raw_frames(frames, 270, 480, fps=2.0)
    assert grid.tolist() == [list(ours.plan(raw, NO_OPTIONS).facts.grid_thw or ())]
    with torch.inference_mode():
        rows = checkpoint[1](patches, grid_thw=grid).pooler_output
    assert relative(encode(ours, [(raw, data)])[0], rows) <= 1e-4


def test_images_and_videos_share_a_batch(ours: Encoder, encode: Any) -> None:
    video = (raw_frames(5, 90, 160), random_picture(90, 160, frames=5))
    items = [image_item(300, 410), video, image_item(8, 1600), image_item(1, 1)]
    for packed, item in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [item])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)


def test_bfloat16_points_the_same_way(
    checkpoint: tuple[Path, Any], load: Callable[..., Encoder], ours: Encoder, encode: Any, alike: Any
) -> None:
    half = load("qwen2_vl", checkpoint[0], "bfloat16")
    items = [image_item(*size) for size in SIZES]
    assert alike(torch.cat(encode(half, items)), torch.cat(encode(ours, items))) >= 0.999
