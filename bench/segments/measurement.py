"""The ratios, each of neighbouring requests in one run, so that a busy machine touches both sides."""

from __future__ import annotations

import io
import statistics
import tempfile
import time
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from demo.weights.ensure import ensure_weights
from epd.cli.parts import StackOptions
from epd.cli.stack import Stack
from epd.client import Client
from epd.contracts.answers import ItemAnswer
from epd.contracts.errors import EncodeFailed
from epd.contracts.job import SegmentUse
from epd.contracts.timings import FORWARD, PREPROCESS

_RATE = 16_000
_WINDOW = 30
_CONFIG = """
default_model = "ears"
[encoders.ear]
family = "whisper"
path = "{path}"
dtype = "float32"
[models.ears]
audio = "ear"
"""

Sound = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of the rounds: ratios of wall seconds and of the device's, and a cold encode's seconds."""

    cold_over_longer: float
    cold_over_known: float
    device_cold_over_longer: float
    cold_s: float


@dataclass(frozen=True, slots=True)
class _Round:
    cold: tuple[float, float]
    longer: tuple[float, float]
    known: float


def measure(rounds: int) -> Figures:
    """Run a stack of its own.

    Raises:
        EncodeFailed: a request failed, or did not reuse what it should.
    """
    with tempfile.TemporaryDirectory(prefix="epd-bench-") as name:
        config = Path(name) / "epd.toml"
        weights = ensure_weights(Path(name) / "models", say=lambda _: None)
        config.write_text(_CONFIG.format(path=weights["whisper-tiny.en"]), encoding="utf-8")
        with Stack(StackOptions(config=config, data_dir=Path(name))) as stack:
            stack.wait_ready()
            with Client(stack.api_url) as client:
                _timed(client, _sound(10, 0), SegmentUse(cached=0, encoded=1))
                done = [_round(client, 3 * number + 1) for number in range(rounds)]
    return Figures(
        cold_over_longer=statistics.median(one.cold[0] / one.longer[0] for one in done),
        cold_over_known=statistics.median(one.cold[0] / one.known for one in done),
        device_cold_over_longer=statistics.median(one.cold[1] / one.longer[1] for one in done),
        cold_s=statistics.median(one.cold[0] for one in done),
    )


def _round(client: Client, seed: int) -> _Round:
    cold = _timed(client, _sound(65, seed), SegmentUse(cached=0, encoded=3))
    minute = _sound(60, seed + 1)
    _timed(client, minute, SegmentUse(cached=0, encoded=2))
    longer = np.concatenate([minute, _sound(5, seed + 2)])
    swapped = np.roll(minute, _WINDOW * _RATE)
    return _Round(
        cold=cold,
        longer=_timed(client, longer, SegmentUse(cached=2, encoded=1)),
        known=_timed(client, swapped, SegmentUse(cached=2, encoded=0))[0],
    )


def _timed(client: Client, sound: Sound, expected: SegmentUse) -> tuple[float, float]:
    """Seconds of one request, and those that the device took of it."""
    item = {"type": "audio", "data": _wav(sound)}
    started = time.perf_counter()
    answer: ItemAnswer = client.encode([item]).items[0]
    seconds = time.perf_counter() - started
    if answer.segments != expected:
        raise EncodeFailed(f"{answer.segments} instead of {expected}: {answer.error}")
    return seconds, answer.timings.get(PREPROCESS, 0.0) + answer.timings.get(FORWARD, 0.0)


def _sound(seconds: int, seed: int) -> Sound:
    """Noise: no two windows of it are alike."""
    return np.random.default_rng(seed).integers(-3000, 3000, seconds * _RATE).astype(np.int16)


def _wav(sound: Sound) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(_RATE)
        out.writeframes(sound.astype("<i2").tobytes())
    return file.getvalue()
