"""Makes media with the ffmpeg of the wheel, whose encoders are known on every system."""

from __future__ import annotations

import subprocess
from pathlib import Path

import imageio_ffmpeg


def make_media(path: Path, *arguments: str) -> Path:
    """Run ffmpeg with these arguments to write ``path``."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *arguments, str(path)]
    subprocess.run(command, check=True, timeout=60)
    return path
