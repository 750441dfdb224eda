"""Our resize on tensors against ``PIL.Image.resize``: equal bit for bit, whatever the sizes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from gpu_worker.preprocess.resample import Filter
from gpu_worker.preprocess.resize import AxisPass, Window, resize, tensor_pass
from tests.unit.encoders.tiny_checkpoints import random_image

#: The way of a device, and what the processor chooses.
both_ways = pytest.mark.parametrize("way", [tensor_pass, None], ids=["tensor", "chosen"])


def pillow(image: Tensor, size: tuple[int, int], filter_: Filter) -> Tensor:
    resized = Image.fromarray(image.numpy()).resize((size[1], size[0]), Image.Resampling(int(filter_)))
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


@both_ways
@pytest.mark.parametrize("filter_", list(Filter))
def test_random_sizes_are_equal(filter_: Filter, way: AxisPass | None) -> None:
    chooser = random.Random(11)
    for seed in range(60):
        sides = [chooser.choice([1, 2, 3, chooser.randint(1, 60), chooser.randint(1, 500)]) for _ in range(4)]
        image, size = random_image(sides[0], sides[1], seed=seed), (sides[2], sides[3])
        ours = resize(image[None], size, filter_=filter_, way=way)[0]
        assert torch.equal(ours, pillow(image, size, filter_)), sides


@both_ways
@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (1, 1, (56, 56)),
        (8, 1600, (28, 812)),
        (1600, 8, (812, 28)),
        (1, 150, (28, 700)),
        (3, 240, (28, 504)),
        (1080, 1920, (1092, 1932)),
        (1080, 1920, (256, 455)),
        (2000, 100, (56, 40)),
        (56, 56, (56, 56)),
        (56, 70, (56, 28)),
        (70, 56, (28, 56)),
    ],
)
def test_odd_shapes_are_equal(height: int, width: int, size: tuple[int, int], way: AxisPass | None) -> None:
    image = random_image(height, width, seed=height + width)
    assert torch.equal(resize(image[None], size, way=way)[0], pillow(image, size, Filter.BICUBIC))


@both_ways
def test_extremes_do_not_overflow(way: AxisPass | None) -> None:
    image = torch.zeros(64, 64, 3, dtype=torch.uint8)
    image[::2, 1::2] = 255
    image[32:] = 255
    for size in [(63, 63), (65, 200), (17, 100)]:
        assert torch.equal(resize(image[None], size, way=way)[0], pillow(image, size, Filter.BICUBIC))


@both_ways
def test_frames_are_resized_one_by_one(way: AxisPass | None) -> None:
    frames = random_image(50, 70, frames=5)
    together = resize(frames, (28, 56), way=way)
    assert together.shape == (5, 3, 28, 56)
    for index in range(5):
        assert torch.equal(together[index], pillow(frames[index], (28, 56), Filter.BICUBIC))


@both_ways
@pytest.mark.parametrize(("height", "width"), [(333, 500), (500, 333), (20, 4000), (4000, 20), (256, 256)])
def test_a_window_is_a_part_of_the_whole(height: int, width: int, way: AxisPass | None) -> None:
    image = random_image(height, width)
    size = (64, 64 * width // height) if height <= width else (64 * height // width, 64)
    window = Window(top=(size[0] - 48) // 2, left=(size[1] - 40) // 2, height=48, width=40)
    whole = pillow(image, size, Filter.BICUBIC)
    expected = whole[:, window.top : window.top + 48, window.left : window.left + 40]
    assert torch.equal(resize(image[None], size, window=window, way=way)[0], expected)


def test_the_image_itself_is_not_changed() -> None:
    image = random_image(40, 60)[None]
    before = image.clone()
    resize(image, (20, 30))
    assert torch.equal(image, before)


def test_bands_on_several_threads_join_to_the_image() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for frames in (1, 2, 5):
            video = random_image(400, 500, frames=frames, seed=frames)
            for size in [(90, 1200), (700, 64)]:
                ours = resize(video, size)
                assert torch.equal(ours, resize(video, size, way=tensor_pass))
                assert torch.equal(ours[-1], pillow(video[-1], size, Filter.BICUBIC))
    finally:
        torch.set_num_threads(before)


def test_a_crop_of_a_very_long_image_is_not_resized_whole() -> None:
    """Whole it would have 256 x 5 million pixels, 4 GB; within the time of a test, too."""
    image = random_image(2, 40_000)
    window = Window(top=16, left=2_500_000, height=224, width=224)
    assert resize(image[None], (256, 5_120_000), window=window).shape == (1, 3, 224, 224)
