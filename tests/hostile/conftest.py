"""Fixtures: a bad server, and decoding into arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from epd.contracts.embedding import AudioRules, VideoRules
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawImage
from tests.hostile.bad_server import MEDIA, BadServer
from workers.decode.decode import decode
from workers.limits import DecodeLimits

QWEN = VideoRules(fps=2, min_frames=4, max_frames=768, frame_multiple=2)
Raw = RawImage | RawFrames | RawAudio
Decode = Callable[..., tuple[Raw, NDArray[np.generic]]]


@pytest.fixture(scope="session")
def bad_server() -> Iterator[BadServer]:
    with BadServer() as server:
        yield server


@pytest.fixture
def decoded(tmp_path: Path) -> Decode:
    """Decode a case file; gives the description and the blob as an array of its stated shape."""

    def run(
        name: str | Path,
        modality: Modality,
        *,
        video: VideoRules = QWEN,
        sample_rate: int = 16_000,
        options: ItemOptions | None = None,
        **limits: float,
    ) -> tuple[Raw, NDArray[np.generic]]:
        rules = {
            Modality.IMAGE: None,
            Modality.VIDEO: video,
            Modality.AUDIO: AudioRules(sample_rate=sample_rate),
        }
        out = tmp_path / "blob"
        raw = decode(
            MEDIA / name,
            modality=modality,
            options=options or ItemOptions(),
            rules=rules[modality],
            limits=replace(DecodeLimits(), **limits),
            out=out,
        )
        assert raw.blob.name == "blob"
        assert raw.blob.nbytes == out.stat().st_size
        return raw, _as_array(raw, out)

    return run


def _as_array(raw: Raw, path: Path) -> NDArray[np.generic]:
    if isinstance(raw, RawAudio):
        return np.fromfile(path, np.float32).reshape(raw.samples)
    flat = np.fromfile(path, np.uint8)
    if isinstance(raw, RawImage):
        return flat.reshape(raw.height, raw.width, 3)
    return flat.reshape(raw.frames, raw.height, raw.width, 3)
