"""``python -m bench.segments [--json] [--rounds N]``: audio whose beginning is cached against new audio."""

from __future__ import annotations

import io
import statistics
import tempfile
import time
import wave
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.cli import finish, load_average, machine, make_parser
from demo.weights.ensure import ensure_weights
from epd.client import Client
from epd.contracts.errors import EncodeFailed
from epd.contracts.job import SegmentUse
from epd.contracts.responses import ItemAnswer
from epd.contracts.timings import FORWARD, PREPROCESS
from epd.stack.parts import StackOptions
from epd.stack.stack import Stack

_RATE = 16_000
_WINDOW = 30
_CONFIG = """
default_model = "speech"
[encoders.whisper]
family = "whisper"
path = "{path}"
dtype = "float32"
[models.speech]
audio = "whisper"
"""

_NOTE = (
    "POST /v1/encode of 16 kHz WAV as inline data, one at a time, whisper-tiny.en in fp32, seconds of the "
    "caller; cold: 65 s of new audio; longer: 65 s after their first 60 s; known: 60 s whose two windows "
    "changed places; medians of the rounds' ratios"
)


Audio = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of the rounds: ratios of wall and of device seconds, and the seconds of a cold encode."""

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
    """Measure on a stack of its own.

    Raises:
        EncodeFailed: a request failed, or did not reuse the segments that it should.
    """
    with tempfile.TemporaryDirectory(prefix="epd-bench-") as name:
        config = Path(name) / "epd.toml"
        weights = ensure_weights(Path(name) / "models", say=lambda _: None)
        config.write_text(_CONFIG.format(path=weights["whisper-tiny.en"]), encoding="utf-8")
        with Stack(StackOptions(config=config, data_dir=Path(name))) as stack:
            stack.wait_ready()
            with Client(stack.api_url) as client:
                _timed(client, _audio(10, 0), SegmentUse(cached=0, encoded=1))
                done = [_round(client, 3 * number + 1) for number in range(rounds)]
    return Figures(
        cold_over_longer=statistics.median(one.cold[0] / one.longer[0] for one in done),
        cold_over_known=statistics.median(one.cold[0] / one.known for one in done),
        device_cold_over_longer=statistics.median(one.cold[1] / one.longer[1] for one in done),
        cold_s=statistics.median(one.cold[0] for one in done),
    )


def _round(client: Client, seed: int) -> _Round:
    cold = _timed(client, _audio(65, seed), SegmentUse(cached=0, encoded=3))
    minute = _audio(60, seed + 1)
    _timed(client, minute, SegmentUse(cached=0, encoded=2))
    longer = np.concatenate([minute, _audio(5, seed + 2)])
    swapped = np.roll(minute, _WINDOW * _RATE)
    return _Round(
        cold=cold,
        longer=_timed(client, longer, SegmentUse(cached=2, encoded=1)),
        known=_timed(client, swapped, SegmentUse(cached=2, encoded=0))[0],
    )


def _timed(client: Client, audio: Audio, expected: SegmentUse) -> tuple[float, float]:
    """Seconds of one request, and the device's share of them."""
    item = {"type": "audio", "data": _wav(audio)}
    started = time.perf_counter()
    answer: ItemAnswer = client.encode([item]).items[0]
    seconds = time.perf_counter() - started
    if answer.segments != expected:
        raise EncodeFailed(f"{answer.segments} instead of {expected}: {answer.error}")
    return seconds, answer.timings.get(PREPROCESS, 0.0) + answer.timings.get(FORWARD, 0.0)


def _audio(seconds: int, seed: int) -> Audio:
    """Noise, so that no two windows are alike."""
    return np.random.default_rng(seed).integers(-3000, 3000, seconds * _RATE).astype(np.int16)


def _wav(audio: Audio) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(_RATE)
        out.writeframes(audio.astype("<i2").tobytes())
    return file.getvalue()


def main() -> None:
    """Measure once, and print."""
    parser = make_parser("segments", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    options = parser.parse_args()
    load_before = round(load_average(), 2)
    figures = measure(max(1, options.rounds))
    document = {name: round(value, 3) for name, value in asdict(figures).items()}
    finish(document | machine(load_before) | {"note": _NOTE}, _text(figures), as_json=options.json)


def _text(figures: Figures) -> str:
    return (
        f"65 s of new audio: {figures.cold_s:.2f} s; after their first 60 s: {figures.cold_over_longer:.1f} "
        f"times less; 60 s of known windows: {figures.cold_over_known:.1f} times less\n"
        f"on the device: {figures.device_cold_over_longer:.1f} times less for the longer one\n"
    )


if __name__ == "__main__":
    main()
