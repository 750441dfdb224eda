"""Media files that benchmarks encode, and endless copies of them that differ in their bytes alone."""

from __future__ import annotations

import io
import wave
from enum import StrEnum

import av
import numpy as np

from bench.images import photos, renamed, thumbnails

#: JPEG quality at which a photo of 1080p has about 310 KB.
_QUALITY = 83
_SAMPLE_RATE = 16_000


class Kind(StrEnum):
    """A kind of file."""

    FULL_HD = "1080p"  #: a JPEG of 1920 x 1080
    VGA = "480p"  #: a JPEG of 640 x 480
    SMALL = "small"  #: a JPEG of 64 x 64
    AUDIO = "audio"  #: a WAV of 10 s
    VIDEO = "video"  #: an MP4 of 4 s, 640 x 360, without an audio track

    @property
    def media_type(self) -> str:
        """The type of an item in a request."""
        return self.value if self in {Kind.AUDIO, Kind.VIDEO} else "image"

    @property
    def content_type(self) -> str:
        """The type of the file over HTTP."""
        return {"image": "image/jpeg", "audio": "audio/wav", "video": "video/mp4"}[self.media_type]


def make_files(kind: Kind, count: int) -> list[bytes]:
    """So many files of a kind with different content, the same ones each time."""
    match kind:
        case Kind.FULL_HD:
            return photos(count, quality=_QUALITY)
        case Kind.VGA:
            return photos(count, size=(640, 480), quality=_QUALITY)
        case Kind.SMALL:
            return thumbnails(count, seed=7)
        case Kind.AUDIO:
            return [_wav(np.random.default_rng(seed), seconds=10) for seed in range(count)]
        case Kind.VIDEO:
            return [_mp4(np.random.default_rng(seed), seconds=4) for seed in range(count)]


def named(kind: Kind, file: bytes, name: str) -> bytes:
    """The same content as another file: ``name`` is in a place that decoders skip."""
    match kind:
        case Kind.AUDIO:
            return _with_chunk(file, name.encode())
        case Kind.VIDEO:
            return file + _box(b"free", name.encode())
        case _:
            return renamed(file, name)


def _wav(chance: np.random.Generator, seconds: int) -> bytes:
    at = np.arange(seconds * _SAMPLE_RATE) / _SAMPLE_RATE
    tone = np.sin(2 * np.pi * chance.uniform(100, 400) * at) + chance.normal(0, 0.1, at.size)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_SAMPLE_RATE)
        file.writeframes((tone * 8000).astype("<i2").tobytes())
    return out.getvalue()


def _with_chunk(wav: bytes, text: bytes) -> bytes:
    """A WAV with one more RIFF chunk at its end. Chunks have even sizes."""
    text += b" " * (len(text) % 2)
    body = wav[8:] + b"name" + len(text).to_bytes(4, "little") + text
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def _mp4(chance: np.random.Generator, seconds: int, rate: int = 25) -> bytes:
    out = io.BytesIO()
    scene = chance.integers(0, 255, (9, 16, 3), dtype=np.uint8).repeat(40, 0).repeat(40, 1)
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.height, stream.width = scene.shape[:2]
        stream.pix_fmt = "yuv420p"
        for number in range(seconds * rate):
            frame = av.VideoFrame.from_ndarray(np.roll(scene, 4 * number, axis=1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def _box(kind: bytes, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + kind + content
