"""Qwen3-VL's tower on a small random checkpoint of the real config class, against transformers' own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as frame_resize

from epd.contracts.errors import MediaTooLarge
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

#: Bounds, mean and deviation of the published Qwen3-VL checkpoints' image processor.
IMAGE = {
    "patch_size": 16,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder as ``save_pretrained`` writes it, and transformers' tower."""
    torch.manual_seed(0)
    vision = {
        "depth": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
        "out_hidden_size": 32,
        "num_position_embeddings": 144,
        "deepstack_visual_indexes": [0, 2],
    }
    config = Qwen3VLConfig(text_config=TEXT | {"head_dim": 16}, vision_config=vision)
    model = Qwen3VLForConditionalGeneration(config).eval()
    make_felt(model.model.visual)
    folder = tmp_path_factory.mktemp("qwen3")
    model.save_pretrained(folder)
    Qwen2VLImageProcessorPil(**IMAGE).save_pretrained(folder)
    return folder, model.model.visual


@pytest.fixture(scope="module")
def processor() -> Any:
    return Qwen2VLImageProcessorPil(**IMAGE)


@pytest.fixture(scope="module")
def ours(checkpoint: tuple[Path, Any], load: Callable[..., Encoder]) -> Encoder:
    return load("qwen3_vl", checkpoint[0])


def wide_rows(tower: Any, patches: Tensor, grid: Tensor) -> Tensor:
    """The merged rows and then each deepstack level's, side by side."""
    with torch.inference_mode():
        out = tower(patches, grid_thw=grid)
    return torch.cat([out.pooler_output, *out.deepstack_features], dim=1)


def test_grids_are_equal_for_500_random_sizes(ours: Encoder) -> None:
    for height, width in random_sizes(500):
        size = smart_resize(height, width, 32, 65536, 16777216)
        plan = ours.plan(raw_image(height, width), NO_OPTIONS)
        assert plan.facts.grid_thw == (1, size[0] // 16, size[1] // 16), (height, width)
        assert plan.tokens == size[0] * size[1] // 1024


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_grids_and_pixels_are_the_processors(ours: Encoder, processor: Any, height: int, width: int) -> None:
    raw, picture = image_item(height, width)
    wanted = processed(processor, [picture])
    plan = ours.plan(raw, NO_OPTIONS)
    assert wanted.image_grid_thw.tolist() == [list(plan.facts.grid_thw or ())]
    got = ours.patches(picture, plan)  # type: ignore[attr-defined]
    torch.testing.assert_close(got, wanted.pixel_values, atol=1e-5, rtol=0)


def test_frame_sizes_are_the_video_processors(ours: Encoder) -> None:
    chooser = random.Random(6)
    for height, width in random_sizes(500):
        frames = chooser.choice([2, 4, 5, 7, 40, 101, 768])
        raw = raw_frames(frames, height, width)
        try:
            size = frame_resize(frames, height, width, 2, 32, 128 * 32 * 32, 768 * 32 * 32)
        except ValueError:  # a thin frame is thought of as enlarged, and rounding may take it above 200 to 1
            with pytest.raises(MediaTooLarge):
                ours.plan(raw, NO_OPTIONS)
            continue
        plan, steps = ours.plan(raw, NO_OPTIONS), -(-frames // 2)
        assert plan.facts.grid_thw == (steps, size[0] // 16, size[1] // 16), (frames, height, width)
        assert plan.tokens == steps * size[0] * size[1] // 1024


def test_embeddings_of_mixed_images_are_equal(
    ours: Encoder, processor: Any, checkpoint: tuple[Path, Any], encode: Any, relative: Any
) -> None:
    items = [image_item(*size) for size in SIZES]
    wanted = processed(processor, [picture for _, picture in items])
    rows = wide_rows(checkpoint[1], wanted.pixel_values, wanted.image_grid_thw)
    assert ours.card.hidden == rows.shape[1] == 32 * 3
    got = torch.cat(encode(ours, items))
    for part, level in zip(got.split(32, 1), rows.split(32, 1), strict=True):
        assert relative(part, level) <= 1e-4


@pytest.mark.parametrize("frames", [2, 5])
def test_videos_are_equal(
    ours: Encoder, checkpoint: tuple[Path, Any], encode: Any, relative: Any, frames: int
) -> None:
    data = random_picture(270, 480, frames=frames, seed=frames)
    raw = raw_frames(frames, 270, 480, fps=2.0)
    plan = ours.plan(raw, NO_OPTIONS)
    assert plan.target is not None
    pixels = plan.target[0] * plan.target[1]
    same = Qwen2VLImageProcessorPil(**IMAGE | {"size": {"shortest_edge": pixels, "longest_edge": pixels}})
    patches, grid = video_patches(same, data)
    assert grid.tolist() == [list(plan.facts.grid_thw or ())]
    assert plan.facts.deepstack_levels == 2
    assert relative(encode(ours, [(raw, data)])[0], wide_rows(checkpoint[1], patches, grid)) <= 1e-4


def test_images_and_videos_share_a_batch(ours: Encoder, encode: Any) -> None:
    video = (raw_frames(5, 90, 160), random_picture(90, 160, frames=5))
    items = [image_item(300, 410), video, image_item(8, 1600), image_item(1, 1)]
    for packed, item in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [item])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)


def test_bfloat16_points_the_same_way(
    checkpoint: tuple[Path, Any], load: Callable[..., Encoder], ours: Encoder, encode: Any, alike: Any
) -> None:
    half = load("qwen3_vl", checkpoint[0], "bfloat16")
    items = [image_item(*size) for size in SIZES]
    assert alike(torch.cat(encode(half, items)), torch.cat(encode(ours, items))) >= 0.999
