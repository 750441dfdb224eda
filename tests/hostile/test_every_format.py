"""Every format that is recognised is also decoded, under a name that does not reveal it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from epd.contracts.media import Modality, RawAudio, RawFrames, RawImage
from tests.hostile.media_maker import make_media

Decode = Callable[..., tuple[RawImage | RawFrames | RawAudio, np.ndarray]]
IMAGES = "testsrc=s=64x48:r=10:d=2"
AUDIO = "sine=440:r=48000:d=1"


def make(path: Path, *arguments: str) -> Path:
    return make_media(path, *arguments).rename(path.with_name("media"))


@pytest.mark.parametrize(
    ("ending", "codec"),
    [
        ("mp4", "libx264"),
        ("mov", "mpeg4"),
        ("mkv", "ffv1"),
        ("webm", "libvpx-vp9"),
        ("avi", "mpeg4"),
        ("flv", "flv"),
        ("asf", "msmpeg4v3"),
        ("ts", "mpeg2video"),
        ("mpg", "mpeg1video"),
        ("ogv", "libtheora"),
    ],
)
def test_video_containers(decoded: Decode, tmp_path: Path, ending: str, codec: str) -> None:
    rate = "25" if ending == "mpg" else "10"
    source = make(
        tmp_path / f"a.{ending}",
        *("-f", "lavfi", "-i", IMAGES, "-f", "lavfi", "-i", AUDIO, "-r", rate),
        *("-c:v", codec, "-pix_fmt", "yuv420p"),
    )
    raw, frames = decoded(source, Modality.VIDEO)
    assert isinstance(raw, RawFrames)
    assert frames.shape == (4, 48, 64, 3)
    assert raw.duration == pytest.approx(2.0, abs=0.15)
    audio, _ = decoded(source, Modality.AUDIO)
    assert isinstance(audio, RawAudio)
    assert audio.samples == pytest.approx(16_000, abs=1_600)


@pytest.mark.parametrize(
    "ending", ["wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "aiff", "caf", "au", "wv"]
)
def test_audio_files(decoded: Decode, tmp_path: Path, ending: str) -> None:
    source = make(tmp_path / f"a.{ending}", "-f", "lavfi", "-i", AUDIO)
    raw, audio = decoded(source, Modality.AUDIO)
    assert isinstance(raw, RawAudio)
    assert raw.samples == pytest.approx(16_000, abs=1_100)
    middle = audio[4_000:12_000]
    assert np.abs(np.fft.rfft(middle)).argmax() * 2 == 440


@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "AVIF"])
def test_image_files(decoded: Decode, tmp_path: Path, name: str) -> None:
    if name == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow was built without AVIF")
    image = Image.new("RGB", (50, 30), (200, 100, 50))
    image.save(tmp_path / "media", name)
    raw, pixels = decoded(tmp_path / "media", Modality.IMAGE)
    assert isinstance(raw, RawImage)
    assert pixels.shape == (30, 50, 3)
    assert np.abs(pixels.astype(int) - (200, 100, 50)).max() <= 6
