"""The fast JPEG path gives Pillow's pixels bit for bit, and a time limit is not taken for a corrupt file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from workers.decode.image import Scratch, decode_common_jpeg, open_image


def photo_like(width: int, height: int) -> Image.Image:
    """Smooth colour with noise, so that every coefficient counts."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([127 + 120 * np.sin(x / 9 + k) * np.cos(y / 7 - k) for k in range(3)], axis=-1)
    noise = np.random.default_rng(width * height).normal(0, 12, waves.shape)
    return Image.fromarray(np.clip(waves + noise, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("sampling", [0, 1, 2])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (33, 17), (64, 48), (129, 65), (257, 191)])
def test_jpeg_pixels_equal_those_of_pillow(tmp_path: Path, sampling: int, size: tuple[int, int]) -> None:
    for quality, progressive in ((30, False), (75, True), (95, False)):
        path = tmp_path / "a.jpg"
        photo_like(*size).save(path, subsampling=sampling, quality=quality, progressive=progressive)
        pixels = decode_common_jpeg(path.read_bytes(), size, Scratch())
        with Image.open(path) as image:
            assert pixels is not None
            assert np.array_equal(pixels, np.asarray(image.convert("RGB")))


def test_uncommon_jpegs_are_left_to_pillow(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    photo_like(64, 48).save(path)
    whole = path.read_bytes()
    assert decode_common_jpeg(path.read_bytes(), (48, 64), Scratch()) is None
    path.write_bytes(whole[:-100])
    assert decode_common_jpeg(path.read_bytes(), (64, 48), Scratch()) is None
    photo_like(64, 48).convert("L").save(path)
    assert decode_common_jpeg(path.read_bytes(), (64, 48), Scratch()) is None
    photo_like(64, 48).convert("CMYK").save(path)
    assert decode_common_jpeg(path.read_bytes(), (64, 48), Scratch()) is None
    photo_like(64, 48).save(path, keep_rgb=True)
    assert decode_common_jpeg(path.read_bytes(), (64, 48), Scratch()) is None


def test_what_is_no_fault_of_the_file_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path)
    with (
        pytest.raises(MemoryError),
        open_image(path, format_name="PNG", max_pixels=100),
    ):
        raise MemoryError
