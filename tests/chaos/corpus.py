"""Distinct media by number: no two things of a corpus have the same bytes; a seed gives the same again."""

from __future__ import annotations

import io
import struct
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from workers.decode.ffmpeg import ffmpeg_binary

#: Things of each type in a row of ten, where a scenario asks for all types.
POSTERS = ("poster",)
MIXED = ("image",) * 7 + ("audio",) * 2 + ("video",)
IMAGES = ("image",)
_SAMPLE_RATE = 16_000


@dataclass(frozen=True, slots=True)
class Thing:
    """One piece of media: its type, a name that is a path on the site, and its bytes."""

    type: str
    name: str
    data: bytes


class Corpus:
    """Gives out new things for ever."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._number = 0

    def take(self, count: int, types: Sequence[str] = IMAGES) -> list[Thing]:
        """The next ``count`` things, their types in turn from ``types``."""
        taken = []
        for place in range(count):
            self._number += 1
            taken.append(_thing(self._seed, self._number, types[place % len(types)]))
        return taken


def _thing(seed: int, number: int, kind: str) -> Thing:
    dice = np.random.default_rng((seed, number))
    name = f"{seed}-{number}"
    match kind:
        case "image":
            return Thing("image", f"{name}.png", _image(dice, (96, 72), "PNG"))
        case "poster":  # half a mebibyte when it is decoded
            return Thing("image", f"{name}.jpg", _image(dice, (480, 360), "JPEG"))
        case "audio":
            return Thing("audio", f"{name}.wav", _audio(dice))
    return Thing("video", f"{name}.mp4", _video(dice))


def _image(dice: np.random.Generator, size: tuple[int, int], form: str) -> bytes:
    coarse = dice.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, form)
    return file.getvalue()


def _audio(dice: np.random.Generator) -> bytes:
    time = np.arange(_SAMPLE_RATE // 2) / _SAMPLE_RATE
    tones = sum(np.sin(2 * np.pi * pitch * time) for pitch in dice.uniform(100, 4000, 3))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(_SAMPLE_RATE)
        out.writeframes((tones * 8000).astype("<i2").tobytes())
    return file.getvalue()


def _video(dice: np.random.Generator) -> bytes:
    """One of four clips with a free box behind it: other bytes, so another digest, of the same frames."""
    padding = dice.bytes(16)
    return _clip(int(dice.integers(4))) + struct.pack(">I4s", 8 + len(padding), b"free") + padding


@cache
def _clip(hue: int) -> bytes:
    """A second of video with a tone."""
    image = f"testsrc=size=64x48:rate=8:duration=1,hue=h={90 * hue}"
    tone = f"sine=frequency={300 + 100 * hue}:duration=1"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        command = [str(ffmpeg_binary()), "-nostdin", "-y", "-f", "lavfi", "-i", image, "-f", "lavfi"]
        command += ["-i", tone, "-c:v", "mpeg4", str(path)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return path.read_bytes()
