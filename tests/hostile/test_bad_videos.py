"""Videos with rotation, odd clocks, missing indices, faulty frames: frames and times are still right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from epd.contracts.embedding import VideoRules
from epd.contracts.errors import (
    CallerFault,
    CorruptMedia,
    DecodeTimeout,
    EpdError,
    MediaTooLarge,
    NoAudioTrack,
    UnsupportedMedia,
)
from epd.contracts.media import ItemOptions, Modality, RawFrames
from tests.hostile.bad_server import MEDIA
from tests.hostile.media_maker import make_media
from workers.decode.decode import audio_track
from workers.limits import DecodeLimits

Decode = Callable[..., tuple[RawFrames, np.ndarray]]
EVERY = VideoRules(fps=120, min_frames=1, max_frames=4096)


@pytest.mark.parametrize(
    ("name", "indices", "rate", "total"),
    [
        ("VID-01.mp4", (0, 2, 5, 7), 8, 8),
        ("VID-07.mp4", (0, 2), 1, 3),
        ("VID-10.mp4", (0, 4, 9, 13, 17, 22, 26, 30, 35, 39), 8, 40),
        ("VID-12.webm", (0, 6, 13, 19), 10, 20),
        ("VID-13.mp4", (0, 6, 12, 17, 23, 29), 10, 30),
        ("VID-14.mp4", (0, 10, 21, 31), 30000 / 1001, 32),
        ("VID-18.ts", (0, 6, 13, 19), 10, 20),
        ("VID-25.mp4", (0, 4, 9, 13, 17, 22, 26, 30, 35, 39), 8, 40),
    ],
)
def test_two_frames_a_second_by_the_reference_rule(
    decoded: Decode, name: str, indices: tuple[int, ...], rate: float, total: int
) -> None:
    raw, frames = decoded(name, Modality.VIDEO)
    every, all_frames = decoded(name, Modality.VIDEO, video=EVERY)
    assert raw.timestamps == pytest.approx([index / rate for index in indices], abs=1e-3)
    assert every.frames == raw.source_frames == total
    assert np.array_equal(frames, all_frames[list(indices)])
    assert raw.duration == pytest.approx(total / rate, abs=1e-3)


def test_rotation_is_applied(decoded: Decode) -> None:
    raw, frames = decoded("VID-01.mp4", Modality.VIDEO)
    assert (raw.width, raw.height) == (48, 64)
    assert raw.original_size == (64, 48)
    red = frames[0, 4, -4].astype(int)
    assert red[0] > 150
    assert red[1:].max() < 100


def test_frames_come_in_the_order_of_showing(decoded: Decode) -> None:
    _, frames = decoded("VID-13.mp4", Modality.VIDEO, video=EVERY)
    levels = frames.mean(axis=(1, 2, 3))
    assert len(levels) == 30
    assert (np.diff(levels) > 0).all()


def test_variable_rate_takes_the_frames_of_even_moments(decoded: Decode) -> None:
    every, _ = decoded("VID-04.mkv", Modality.VIDEO, video=EVERY)
    assert every.timestamps[:3] == pytest.approx((0, 0.1, 0.2), abs=1e-3)
    assert every.timestamps[-1] == pytest.approx(5.0)
    raw, _ = decoded("VID-04.mkv", Modality.VIDEO)
    assert raw.timestamps == pytest.approx((0, 0.6, 1, 2, 2, 3, 3, 4, 4, 5), abs=1e-3)


def test_a_single_frame_is_repeated_to_fill_a_pair(decoded: Decode) -> None:
    raw, frames = decoded("VID-06.mp4", Modality.VIDEO)
    assert (raw.frames, raw.source_frames) == (2, 1)
    assert np.array_equal(frames[0], frames[1])


def test_an_hour_costs_what_is_sampled_of_it(decoded: Decode) -> None:
    raw, _ = decoded("VID-17.mp4", Modality.VIDEO)
    assert (raw.frames, raw.source_frames) == (768, 3600)
    with pytest.raises(MediaTooLarge, match="bytes"):
        decoded("VID-17.mp4", Modality.VIDEO, frame_bytes=768 * raw.height * raw.width * 3 - 1)
    with pytest.raises(MediaTooLarge, match="s of video"):
        decoded("VID-17.mp4", Modality.VIDEO, video_seconds=3599)
    with pytest.raises(MediaTooLarge, match="frames"):
        decoded("VID-17.mp4", Modality.VIDEO, source_frames=3599)


def test_options_override_the_rule(decoded: Decode) -> None:
    raw, _ = decoded("VID-25.mp4", Modality.VIDEO, options=ItemOptions(fps=4, max_frames=16))
    assert raw.frames == 16
    assert raw.sampled_fps == pytest.approx(3.2)


def test_faulty_frames_decode_alike_each_time(decoded: Decode) -> None:
    runs = [decoded("VID-20.mp4", Modality.VIDEO) for _ in range(3)]
    assert all(np.array_equal(runs[0][1], frames) for _, frames in runs)
    assert all(runs[0][0] == raw for raw, _ in runs)
    assert runs[0][0].frames >= 2


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("VID-09.mp4", CorruptMedia, "incomplete"),
        ("VID-19.mp4", UnsupportedMedia, "no video stream"),
        ("VID-22.mp4", UnsupportedMedia, "playlist"),
        ("AUD-01.mp3", UnsupportedMedia, "video"),
        ("IMG-01.jpg", UnsupportedMedia, "video"),
    ],
)
def test_refusals_name_the_reason_and_leave_no_file(
    decoded: Decode, tmp_path: Path, name: str, error: type[EpdError], says: str
) -> None:
    with pytest.raises(error, match=says):
        decoded(name, Modality.VIDEO)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "there"),
    [("VID-02.mp4", False), ("VID-21.mov", True), ("VID-19.mp4", True), ("IMG-21.gif", False)],
)
def test_the_audio_track_is_reported(decoded: Decode, name: str, there: bool) -> None:
    assert (audio_track(MEDIA / name, limits=DecodeLimits()) is not None) is there
    if not there and name.startswith("VID"):
        with pytest.raises(NoAudioTrack):
            decoded(name, Modality.AUDIO)


def test_odd_sizes_keep_every_pixel(decoded: Decode, tmp_path: Path) -> None:
    source = make_media(tmp_path / "odd.mkv", "-f", "lavfi", "-i", "testsrc=s=37x23:r=5:d=1", "-c:v", "ffv1")
    raw, frames = decoded(source, Modality.VIDEO)
    assert frames.shape == (4, 23, 37, 3)
    assert raw.duration == pytest.approx(1.0)


def test_a_new_size_inside_a_stream_is_refused(decoded: Decode, tmp_path: Path) -> None:
    parts = [
        make_media(
            tmp_path / f"{size}.ts", "-f", "lavfi", "-i", f"testsrc2=s={size}:r=8:d=1", "-c:v", "mpeg2video"
        )
        for size in ("64x48", "96x64")
    ]
    whole = tmp_path / "whole.ts"
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.raises(UnsupportedMedia, match="size changes"):
        decoded(whole, Modality.VIDEO)


def test_a_video_that_breaks_off_is_marked(decoded: Decode, tmp_path: Path) -> None:
    source = make_media(
        tmp_path / "whole.mp4",
        *("-f", "lavfi", "-i", "testsrc2=s=320x240:r=10:d=6", "-c:v", "libx264", "-movflags", "+faststart"),
    )
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    raw, _ = decoded(cut, Modality.VIDEO)
    assert raw.partial
    assert raw.timestamps[-1] < 5
    assert not decoded(source, Modality.VIDEO)[0].partial


def test_the_time_limit_ends_ffmpeg(decoded: Decode, tmp_path: Path) -> None:
    source = make_media(
        tmp_path / "long.mp4", "-f", "lavfi", "-i", "testsrc2=s=640x480:r=30:d=20", "-preset", "ultrafast"
    )
    with pytest.raises(DecodeTimeout):
        decoded(source, Modality.VIDEO, video=EVERY, timeout=0.15)
    assert not (tmp_path / "blob").exists()


def test_bytes_flipped_anywhere_never_escape_the_error_tree(decoded: Decode, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    for name in ("VID-01.mp4", "VID-04.mkv", "VID-18.ts", "VID-21.mov"):
        whole = np.frombuffer((MEDIA / name).read_bytes(), np.uint8)
        for _ in range(6):
            bad = whole.copy()
            bad[random.integers(12, len(bad), 8)] ^= random.integers(1, 255, 8, dtype=np.uint8)
            (tmp_path / "bad").write_bytes(bad.tobytes())
            for modality in (Modality.VIDEO, Modality.AUDIO):
                with contextlib.suppress(CallerFault):
                    decoded(tmp_path / "bad", modality, timeout=20)
