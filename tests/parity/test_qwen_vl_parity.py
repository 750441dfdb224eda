"""The vision towers of Qwen2-VL, 2.5 and 3 on small random checkpoints, against transformers' own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as frame_resize

from epd.contracts.errors import MediaTooLarge
from gpu_worker.encoders.base import Encoder
from tests.parity.qwen_kit import (
    IMAGE,
    SIZES,
    image_item,
    processed,
    random_sizes,
    small_model,
    tower_rows,
    video_patches,
)
from tests.unit.tiny_checkpoints import NO_OPTIONS, random_picture, raw_frames, raw_image

MEDIA = Path(__file__).parents[2] / "examples" / "media"


class Reference(NamedTuple):
    """transformers' side: a folder as ``save_pretrained`` writes it, the tower, the image processor."""

    family: str
    folder: Path
    tower: Any
    processor: Any

    @property
    def patch(self) -> int:
        return int(self.processor.patch_size)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        size: dict[str, int] = self.processor.size
        low, high = size["shortest_edge"], size["longest_edge"]
        wanted: tuple[int, int] = smart_resize(height, width, 2 * self.patch, low, high)
        return wanted

    def frame_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """As the published rules have it where no file says otherwise; raises ``ValueError``."""
        cell = (2 * self.patch) ** 2
        if self.family == "qwen3_vl":
            size: tuple[int, int] = frame_resize(frames, height, width, 2, 32, 128 * cell, 768 * cell)
            return size
        most = max(min(768 * cell, 115_200 * cell * 2 // frames), int(128 * cell * 1.05))
        size = smart_resize(height, width, 28, 128 * cell, most)
        return size


@pytest.fixture(scope="module", params=sorted(IMAGE))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp(request.param)
    model, processor = small_model(request.param), Qwen2VLImageProcessorPil(**IMAGE[request.param])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return Reference(request.param, folder, model.model.visual, processor)


@pytest.fixture(scope="module")
def ours(reference: Reference, load: Callable[..., Encoder]) -> Encoder:
    return load(reference.family, reference.folder)


def test_grids_are_equal_for_500_random_sizes(ours: Encoder, reference: Reference) -> None:
    patch = reference.patch
    for height, width in random_sizes(500):
        size = reference.image_size(height, width)
        plan = ours.plan(raw_image(height, width), NO_OPTIONS)
        assert plan.facts.grid_thw == (1, size[0] // patch, size[1] // patch), (height, width)
        assert plan.tokens == size[0] * size[1] // (2 * patch) ** 2


def test_frame_sizes_are_equal_for_500_random_videos(ours: Encoder, reference: Reference) -> None:
    chooser, patch = random.Random(6), reference.patch
    for height, width in random_sizes(500):
        frames = chooser.choice([2, 4, 5, 7, 40, 101, 768])
        raw = raw_frames(frames, height, width)
        try:
            size = reference.frame_size(frames, height, width)
        except ValueError:  # Qwen3-VL thinks a thin frame enlarged, and rounding may take it above 200 to 1
            with pytest.raises(MediaTooLarge):
                ours.plan(raw, NO_OPTIONS)
            continue
        plan, steps = ours.plan(raw, NO_OPTIONS), -(-frames // 2)
        assert plan.facts.grid_thw == (steps, size[0] // patch, size[1] // patch), (frames, height, width)
        assert plan.tokens == steps * size[0] * size[1] // (2 * patch) ** 2


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_grids_and_pixels_are_the_processors(
    ours: Encoder, reference: Reference, height: int, width: int
) -> None:
    raw, picture = image_item(height, width)
    wanted = processed(reference.processor, [picture])
    plan = ours.plan(raw, NO_OPTIONS)
    assert wanted.image_grid_thw.tolist() == [list(plan.facts.grid_thw or ())]
    got = ours.patches(picture, plan)  # type: ignore[attr-defined]
    torch.testing.assert_close(got, wanted.pixel_values, atol=1e-5, rtol=0)


def test_embeddings_of_mixed_images_are_equal(
    ours: Encoder, reference: Reference, encode: Any, relative: Any
) -> None:
    items = [image_item(*size) for size in SIZES]
    wanted = processed(reference.processor, [picture for _, picture in items])
    rows = tower_rows(reference.tower, wanted.pixel_values, wanted.image_grid_thw)
    levels = {"qwen3_vl": 2}.get(reference.family, 0)
    assert ours.card.hidden == rows.shape[1] == 32 * (1 + levels)
    got = torch.cat(encode(ours, items))
    for part, level in zip(got.split(32, 1), rows.split(32, 1), strict=True):
        assert relative(part, level) <= 1e-4


@pytest.mark.parametrize("name", ["astronaut.jpg", "coffee.jpg"])
def test_photos_are_equal(ours: Encoder, reference: Reference, encode: Any, relative: Any, name: str) -> None:
    picture = torch.from_numpy(np.array(Image.open(MEDIA / name).convert("RGB")))
    wanted = processed(reference.processor, [picture])
    rows = tower_rows(reference.tower, wanted.pixel_values, wanted.image_grid_thw)
    got = encode(ours, [(raw_image(picture.shape[0], picture.shape[1]), picture)])[0]
    assert relative(got, rows) <= 1e-4


@pytest.mark.parametrize("frames", [2, 5, 19])
def test_videos_are_equal(
    ours: Encoder, reference: Reference, encode: Any, relative: Any, frames: int
) -> None:
    data, raw = random_picture(270, 480, frames=frames, seed=frames), raw_frames(frames, 270, 480, fps=2.0)
    size = reference.frame_size(frames, 270, 480)
    patches, grid = video_patches(reference.processor, data, size)
    plan = ours.plan(raw, NO_OPTIONS)
    assert grid.tolist() == [list(plan.facts.grid_thw or ())]
    assert plan.facts.deepstack_levels == {"qwen3_vl": 2}.get(reference.family, 0)
    assert relative(encode(ours, [(raw, data)])[0], tower_rows(reference.tower, patches, grid)) <= 1e-4


def test_images_and_videos_share_a_batch(ours: Encoder, encode: Any) -> None:
    video = (raw_frames(5, 90, 160), random_picture(90, 160, frames=5))
    items = [image_item(300, 410), video, image_item(8, 1600), image_item(1, 1)]
    for packed, item in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [item])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)


def test_bfloat16_points_the_same_way(
    reference: Reference, load: Callable[..., Encoder], ours: Encoder, encode: Any, alike: Any
) -> None:
    half = load(reference.family, reference.folder, "bfloat16")
    items = [image_item(*size) for size in SIZES]
    assert alike(torch.cat(encode(half, items)), torch.cat(encode(ours, items))) >= 0.999
