"""A photo of 1080p and a video, and a web server in a process of its own for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from PIL import Image

PHOTO, FILM = "photo.jpg", "film.mp4"
SIZE = (1920, 1080)
_FILM_RATE = 30
_QUALITY = 85
_PATIENCE = 20.0
_ROOT = Path(__file__).parents[2]


def make_media(folder: Path, seconds: int) -> None:
    """Write both files; the video lasts so many seconds.

    Raises:
        CalledProcessError: ffmpeg could not make the video.
    """
    chance = np.random.default_rng(1)
    coarse = chance.integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC)
    picture.save(folder / PHOTO, "JPEG", quality=_QUALITY)
    source = f"testsrc2=size={SIZE[0]}x{SIZE[1]}:rate={_FILM_RATE}:duration={seconds}"
    made = ["-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p", "-c:v", "libx264", "-preset", "veryfast"]
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-v", "error", "-y"]
    subprocess.run([*ffmpeg, *made, str(folder / FILM)], check=True, timeout=120)


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """A folder's files from another process (``bench.handoff.web``); its URL."""
    command = [sys.executable, "-m", "bench.handoff.web", str(folder)]
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as web:
        assert web.stdout is not None
        yield f"http://127.0.0.1:{int(web.stdout.readline())}"
        web.communicate(timeout=_PATIENCE)
