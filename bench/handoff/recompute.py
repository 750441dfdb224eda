"""What Decode does without a handoff: download, decode, preprocess, as transformers users do it.

The published image processor handles the image. The published video processor needs torchvision, which does
not work with the CPU build of torch used here. So the image processor handles the frames, and only the first
of each pair, since it makes of one frame what the video processor makes of two. This leaves out some work, so
recomputing the video is a little cheaper here than in reality.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import requests
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.video_utils import load_video

#: Frames a second that Qwen2-VL's processors sample, and most pixels of one frame.
FRAME_RATE = 2
_FRAME_PIXELS = 768 * 28 * 28
#: The published numbers of Qwen2.5-VL's image processor.
IMAGE_RULES: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 12845056}
_TIMEOUT = 30.0


class Recompute:
    """From URLs to model inputs, as in one worker. The connection is kept, as in a server."""

    def __init__(self, web: str, folder: Path) -> None:
        self._web = web
        self._scratch = folder / "downloaded.mp4"
        self._session = requests.Session()
        self._image: Any = Qwen2VLImageProcessorPil(**IMAGE_RULES)
        self._frame: Any = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=_FRAME_PIXELS)

    def image(self, name: str) -> tuple[int, ...]:
        """The grid (t, h, w) of an image, after all the work from its URL to model inputs."""
        image = Image.open(io.BytesIO(self._download(name))).convert("RGB")
        return tuple(self._image([image], return_tensors="pt").image_grid_thw[0].tolist())

    def video(self, name: str) -> tuple[int, ...]:
        """The grid of a video, in the same way. PyAV decodes, as in transformers by default."""
        self._scratch.write_bytes(self._download(name))
        film: Any = str(self._scratch)  # it takes a path, but its annotation does not allow one
        frames, _ = load_video(film, fps=FRAME_RATE)
        grids = self._frame(
            [Image.fromarray(frame) for frame in frames[::2]], return_tensors="pt"
        ).image_grid_thw
        return (len(grids), *grids[0, 1:].tolist())

    def _download(self, name: str) -> bytes:
        answer = self._session.get(f"{self._web}/{name}", timeout=_TIMEOUT)
        answer.raise_for_status()
        return answer.content


PHOTO, FILM = "photo.jpg", "film.mp4"
SIZE = (1920, 1080)
_FILM_RATE = 30
_QUALITY = 85
_WAIT_SECONDS = 20.0
_ROOT = Path(__file__).parents[2]


def make_media(folder: Path, seconds: int) -> None:
    """Write both files. The video lasts ``seconds``.

    Raises:
        CalledProcessError: ffmpeg could not make the video.
    """
    chance = np.random.default_rng(1)
    coarse = chance.integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC)
    image.save(folder / PHOTO, "JPEG", quality=_QUALITY)
    source = f"testsrc2=size={SIZE[0]}x{SIZE[1]}:rate={_FILM_RATE}:duration={seconds}"
    made = ["-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p", "-c:v", "libx264", "-preset", "veryfast"]
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-v", "error", "-y"]
    subprocess.run([*ffmpeg, *made, str(folder / FILM)], check=True, timeout=120)


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Serve a folder from another process (``bench.handoff.web``); yields the URL."""
    command = [sys.executable, "-m", "bench.handoff.web", str(folder)]
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as web:
        assert web.stdout is not None
        yield f"http://127.0.0.1:{int(web.stdout.readline())}"
        web.communicate(timeout=_WAIT_SECONDS)
