"""Images that other decoders rotate, darken, clamp, leak from or crash on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from epd.contracts.errors import (
    CallerFault,
    CorruptMedia,
    EmptyMedia,
    EpdError,
    MediaTooLarge,
    UnsupportedMedia,
)
from epd.contracts.media import Modality, RawImage
from tests.hostile.bad_server import MEDIA

Decode = Callable[..., tuple[RawImage, np.ndarray]]


@pytest.mark.parametrize(
    ("name", "left", "right", "tolerance"),
    [
        ("IMG-01.jpg", (21, 20, 220), (220, 20, 20), 2),
        ("IMG-01b.webp", (20, 200, 20), (240, 240, 240), 2),
        ("IMG-03.png", (255, 255, 255), (0, 0, 255), 0),
        ("IMG-04.png", (255, 255, 255), (0, 0, 255), 0),
        ("IMG-05.png", (255, 255, 255), (90, 90, 90), 0),
        ("IMG-09.jpg", (255, 0, 0), (0, 255, 255), 12),
        ("IMG-19.gif", (255, 255, 255), (255, 255, 255), 0),
        ("IMG-22.webp", (250, 0, 0), (250, 0, 0), 2),
        ("IMG-23.png", (128, 128, 128), (128, 128, 128), 0),
        ("IMG-30.png", (255, 255, 255), (0, 0, 0), 0),
    ],
)
def test_colours_at_the_upper_corners(
    decoded: Decode, name: str, left: tuple[int, ...], right: tuple[int, ...], tolerance: int
) -> None:
    _, pixels = decoded(name, Modality.IMAGE)
    assert np.abs(pixels[0, 0].astype(int) - left).max() <= tolerance
    assert np.abs(pixels[0, -1].astype(int) - right).max() <= tolerance


@pytest.mark.parametrize("name", ["IMG-03.png", "IMG-04.png"])
def test_half_clear_pixels_are_blended_with_white(decoded: Decode, name: str) -> None:
    _, pixels = decoded(name, Modality.IMAGE)
    middle = pixels[pixels.shape[0] // 2, pixels.shape[1] // 2].astype(int)
    assert np.abs(middle - (255, 127, 127)).max() <= 1


@pytest.mark.parametrize("name", ["IMG-06.png", "IMG-07.tif"])
def test_sixteen_bit_grey_keeps_its_levels(decoded: Decode, name: str) -> None:
    _, pixels = decoded(name, Modality.IMAGE)
    assert len(np.unique(pixels)) == 256
    assert abs(pixels.mean() - 127.5) < 1


@pytest.mark.parametrize(
    ("name", "width", "height", "original"),
    [
        ("IMG-01.jpg", 48, 64, (64, 48)),
        ("IMG-01b.webp", 48, 64, (64, 48)),
        ("IMG-10.jpg", 64, 48, (64, 48)),
        ("IMG-15.png", 2000, 8, (2000, 8)),
        ("IMG-16.png", 1600, 8, (1600, 8)),
        ("IMG-17a.png", 26, 28, (26, 28)),
        ("IMG-19.gif", 1, 1, (1, 1)),
        ("IMG-20a.png", 150, 1, (150, 1)),
        ("IMG-20b.png", 240, 3, (240, 3)),
        ("IMG-24.jpg", 64, 48, (64, 48)),
        ("IMG-26.avif", 64, 48, (64, 48)),
        ("IMG-28.jpg", 64, 48, (64, 48)),
    ],
)
def test_sizes(decoded: Decode, name: str, width: int, height: int, original: tuple[int, int]) -> None:
    raw, pixels = decoded(name, Modality.IMAGE)
    assert pixels.shape == (height, width, 3)
    assert raw.original_size == original


@pytest.mark.parametrize(
    ("name", "frames"), [("IMG-21.gif", 3), ("IMG-22.webp", 3), ("IMG-23.png", 3), ("IMG-24.jpg", 1)]
)
def test_frames_of_an_animation_are_counted(decoded: Decode, name: str, frames: int) -> None:
    assert decoded(name, Modality.IMAGE)[0].source_frames == frames


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("IMG-08.tif", UnsupportedMedia, "mode F"),
        ("IMG-11.jpg", CorruptMedia, "JPEG"),
        ("IMG-12.png", CorruptMedia, "PNG"),
        ("IMG-25.heic", UnsupportedMedia, "HEIC"),
        ("IMG-25.jpeg", UnsupportedMedia, "HEIC"),
        ("IMG-27.svg", UnsupportedMedia, "SVG"),
        ("IMG-29.jpg", UnsupportedMedia, "HTML"),
        ("IMG-32.bin", EmptyMedia, "no bytes"),
        ("VID-01.mp4", UnsupportedMedia, "image"),
        ("AUD-01.mp3", UnsupportedMedia, "image"),
    ],
)
def test_refusals_name_the_reason_and_leave_no_file(
    decoded: Decode, tmp_path: Path, name: str, error: type[EpdError], says: str
) -> None:
    with pytest.raises(error, match=says):
        decoded(name, Modality.IMAGE)
    assert list(tmp_path.iterdir()) == []


def test_every_cut_of_an_image_is_a_typed_error(decoded: Decode, tmp_path: Path) -> None:
    for name in ("IMG-01.jpg", "IMG-21.gif", "IMG-22.webp", "IMG-28.jpg", "IMG-07.tif", "IMG-26.avif"):
        whole = (MEDIA / name).read_bytes()
        for part in range(1, 16):
            cut = tmp_path / "cut"
            cut.write_bytes(whole[: len(whole) * part // 16])
            with contextlib.suppress(CallerFault):
                decoded(cut, Modality.IMAGE)


def test_bytes_flipped_anywhere_are_a_typed_error(decoded: Decode, tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    for name in ("IMG-01.jpg", "IMG-04.png", "IMG-07.tif", "IMG-21.gif", "IMG-01b.webp"):
        whole = np.frombuffer((MEDIA / name).read_bytes(), np.uint8)
        for _ in range(12):
            bad = whole.copy()
            bad[random.integers(16, len(bad), 4)] ^= random.integers(1, 255, 4, dtype=np.uint8)
            (tmp_path / "bad").write_bytes(bad.tobytes())
            with contextlib.suppress(CallerFault):
                decoded(tmp_path / "bad", Modality.IMAGE)


def test_a_bomb_is_refused_from_its_header() -> None:
    """In a process of its own, so that its peak memory can be measured."""
    script = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        "from epd.contracts.errors import MediaTooLarge\n"
        "from workers.decode.image import read_image\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    read_image(Path(sys.argv[1]), format_name='PNG', max_pixels=100_000_000)\n"
        "except MediaTooLarge:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    began = time.monotonic()
    shown = subprocess.run(
        [sys.executable, "-c", script, str(MEDIA / "IMG-13.png")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert int(shown.stdout) < 50 * 1024
    assert time.monotonic() - began < 30


def test_the_pixel_limit_holds_to_the_pixel(decoded: Decode) -> None:
    decoded("IMG-01.jpg", Modality.IMAGE, image_pixels=64 * 48)
    with pytest.raises(MediaTooLarge, match="64x48"):
        decoded("IMG-01.jpg", Modality.IMAGE, image_pixels=64 * 48 - 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_comes_upright(decoded: Decode, tmp_path: Path, orientation: int) -> None:
    """Against Pillow's own rule, on an image without any symmetry."""
    from PIL import ImageOps

    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (5, 9, 3), np.uint8))
    tags = Image.Exif()
    tags[0x0112] = orientation
    image.save(tmp_path / "turned.png", exif=tags)
    with Image.open(tmp_path / "turned.png") as stored:
        want = np.asarray(ImageOps.exif_transpose(stored))
    _, pixels = decoded(tmp_path / "turned.png", Modality.IMAGE)
    assert np.array_equal(pixels, want)


@pytest.mark.parametrize(
    ("name", "last"),
    [("IMG-21.gif", None), ("IMG-22.webp", (0, 0, 250)), ("IMG-23.png", (0, 0, 250))],
)
def test_animations_as_video(decoded: Decode, name: str, last: tuple[int, ...] | None) -> None:
    from epd.contracts.embedding import VideoRules

    every = VideoRules(fps=120, min_frames=1, max_frames=64)
    raw, frames = decoded(name, Modality.VIDEO, video=every)
    assert frames.shape == (3, 32, 48, 3)
    assert raw.timestamps == pytest.approx((0, 0.1, 0.2))
    if last is not None:
        assert np.abs(frames[2, 16, 24].astype(int) - last).max() <= 6 or frames[2].any()
    else:
        colours = {tuple(int(level > 128) for level in pixel) for pixel in frames[2].reshape(-1, 3)}
        assert {(1, 0, 0), (0, 1, 0), (0, 0, 1)} <= colours


def test_a_still_image_is_no_video(decoded: Decode) -> None:
    with pytest.raises(UnsupportedMedia, match="still"):
        decoded("IMG-28.jpg", Modality.VIDEO)
