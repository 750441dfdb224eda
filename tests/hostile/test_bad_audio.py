"""Audio files with odd layouts, wrong headers, delays and missing ends: every sample is counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from epd.contracts.errors import (
    CallerFault,
    CorruptMedia,
    EmptyMedia,
    EpdError,
    MediaTooLarge,
    UnsupportedMedia,
)
from epd.contracts.media import Modality, RawAudio
from tests.hostile.bad_server import MEDIA

Decode = Callable[..., tuple[RawAudio, np.ndarray]]


def pitch(samples: np.ndarray, rate: int = 16_000) -> float:
    """The strongest frequency in Hz."""
    return float(np.abs(np.fft.rfft(samples)).argmax()) * rate / len(samples)


@pytest.mark.parametrize(
    ("name", "samples", "peak"),
    [
        ("AUD-01.mp3", 16_000, None),
        ("AUD-02.wav", 16_000, None),
        ("AUD-04.wav", 8_000, 0.250),
        ("AUD-06.wav", 16_000, None),
        ("AUD-07a.wav", 16_000, 0.500),
        ("AUD-07b.wav", 16_000, 0.500),
        ("AUD-13a.wav", 799, None),
        ("AUD-13b.wav", 800, None),
        ("AUD-13c.wav", 801, None),
        ("AUD-15.opus", 16_000, None),
        ("AUD-16.mp3", 16_000, None),
        ("AUD-18.wav", 16_000, None),
        ("AUD-19.wav", 8_000, 0.083),
        ("VID-21.mov", 32_000, None),
    ],
)
def test_samples_pitch_and_gain(decoded: Decode, name: str, samples: int, peak: float | None) -> None:
    raw, audio = decoded(name, Modality.AUDIO)
    assert raw.samples == samples
    assert not raw.partial
    assert abs(pitch(audio) - 440) < 20
    if peak is not None:
        assert np.abs(audio).max() == pytest.approx(peak, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "rate", "samples"), [("AUD-15.opus", 48_000, 48_000), ("AUD-16.mp3", 44_100, 44_100)]
)
def test_codec_delay_is_taken_off_once(decoded: Decode, name: str, rate: int, samples: int) -> None:
    assert decoded(name, Modality.AUDIO, sample_rate=rate)[0].samples == samples


def test_audio_without_images_in_a_video_container(decoded: Decode) -> None:
    """Up to version 7 ffmpeg keeps the padding of the last AAC frame that the edit list cuts."""
    raw, audio = decoded("VID-19.mp4", Modality.AUDIO)
    assert raw.samples in {16_000, 16_384}
    assert abs(pitch(audio) - 440) < 20


def test_opposite_channels_cancel(decoded: Decode) -> None:
    raw, audio = decoded("AUD-05.wav", Modality.AUDIO)
    assert raw.samples == 8_000
    assert np.abs(audio).max() == 0


def test_ten_samples_are_ten_samples(decoded: Decode) -> None:
    assert decoded("AUD-11.wav", Modality.AUDIO)[0].samples == 10


def test_nothing_is_cut_at_thirty_seconds(decoded: Decode) -> None:
    raw, audio = decoded("AUD-12.ogg", Modality.AUDIO)
    assert raw.samples == 496_000
    assert abs(pitch(audio[-12_000:-4_000]) - 880) < 20


def test_a_recording_that_died_keeps_its_good_part(decoded: Decode) -> None:
    raw, _ = decoded("AUD-20.m4a", Modality.AUDIO)
    assert raw.partial
    assert raw.samples == 18_432


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("AUD-10.wav", EmptyMedia),
        ("IMG-01.jpg", UnsupportedMedia),
        ("IMG-29.jpg", UnsupportedMedia),
        ("VID-09.mp4", CorruptMedia),
        ("VID-22.mp4", UnsupportedMedia),
    ],
)
def test_refusals_leave_no_file(decoded: Decode, tmp_path: Path, name: str, error: type[EpdError]) -> None:
    with pytest.raises(error):
        decoded(name, Modality.AUDIO)
    assert list(tmp_path.iterdir()) == []


def test_the_length_limit_counts_decoded_samples(decoded: Decode) -> None:
    assert decoded("AUD-12.ogg", Modality.AUDIO, audio_seconds=31)[0].samples == 496_000
    with pytest.raises(MediaTooLarge, match="longer than 30"):
        decoded("AUD-12.ogg", Modality.AUDIO, audio_seconds=30)


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8])
def test_the_mean_of_full_channels_is_not_clipped(decoded: Decode, tmp_path: Path, channels: int) -> None:
    """Full-scale audio in every channel: float samples beyond 1.0 stay as they are, too."""
    wave = 1.5 * np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000)
    levels = np.linspace(0.5, 1.0, channels)
    soundfile.write(tmp_path / "full.wav", wave[:, None] * levels, 16_000, subtype="FLOAT")
    _, audio = decoded(tmp_path / "full.wav", Modality.AUDIO)
    assert np.allclose(audio, wave * levels.mean(), atol=1e-5)


def test_cuts_and_flips_never_escape_the_error_tree(decoded: Decode, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for name in ("AUD-01.mp3", "AUD-15.opus", "AUD-20.m4a", "AUD-07a.wav"):
        whole = np.frombuffer((MEDIA / name).read_bytes(), np.uint8)
        for _ in range(5):
            bad = whole[: random.integers(20, len(whole))].copy()
            bad[random.integers(12, len(bad), 4)] ^= random.integers(1, 255, 4, dtype=np.uint8)
            (tmp_path / "bad").write_bytes(bad.tobytes())
            with contextlib.suppress(CallerFault):
                decoded(tmp_path / "bad", Modality.AUDIO, timeout=20)
