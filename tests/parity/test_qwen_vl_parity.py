"""The vision towers of the Qwen-VL families on small random checkpoints: what the common bars leave out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.qwen.encoder import QwenEncoder
from tests.parity.media import image_item, photo_item, processed
from tests.parity.published import encode, load_ours
from tests.parity.published_qwen import FAMILIES, SIZES, PublishedQwen, video_patches
from tests.parity.row_figures import relative_error
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PublishedQwen:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return PublishedQwen(request.param, folder)


@pytest.fixture(scope="module")
def ours(reference: PublishedQwen) -> Encoder:
    return load_ours(reference.family, reference.folder)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_grids_and_pixels_are_the_processors(
    ours: Encoder, reference: PublishedQwen, height: int, width: int
) -> None:
    raw, image = image_item(height, width)
    wanted = processed(reference.processor, [image])
    plan = ours.plan(raw, NO_OPTIONS)
    assert wanted.image_grid_thw.tolist() == [list(plan.facts.grid_thw or ())]
    assert isinstance(ours, QwenEncoder)
    torch.testing.assert_close(ours.patches(image, plan), wanted.pixel_values, atol=1e-5, rtol=0)


def test_rows_hold_the_deepstack_levels(ours: Encoder, reference: PublishedQwen) -> None:
    item = image_item(300, 410)
    assert ours.card.hidden == reference.rows(item).shape[1] == 32 * (1 + reference.levels)
    assert ours.plan(item[0], NO_OPTIONS).facts.deepstack_levels == reference.levels


@pytest.mark.parametrize("name", ["astronaut.jpg", "coffee.jpg"])
def test_photos_are_equal(ours: Encoder, reference: PublishedQwen, name: str) -> None:
    item = photo_item(name)
    assert relative_error(encode(ours, [item])[0], reference.rows(item), reference.parts) <= 1e-4


def test_a_long_video_is_equal(ours: Encoder, reference: PublishedQwen) -> None:
    """More frames than are cut into patches at once, and an odd number of them."""
    item = reference.video(19, 270, 480)
    _, grid = video_patches(reference.processor, item[1], reference.frame_size(19, 270, 480))
    assert grid.tolist() == [list(ours.plan(item[0], NO_OPTIONS).facts.grid_thw or ())]
    assert relative_error(encode(ours, [item])[0], reference.rows(item), reference.parts) <= 1e-4
