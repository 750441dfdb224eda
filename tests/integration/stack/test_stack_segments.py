"""Segments end to end: real files through the real stack, and what of them was encoded."""

from __future__ import annotations

import io
import subprocess
import wave
from pathlib import Path

import httpx
import numpy as np
import pytest

from epd.client import Client
from epd.contracts.job import SegmentUse
from epd.contracts.responses import ItemAnswer
from epd.stack.stack import Stack
from workers.decode.ffmpeg import ffmpeg_binary

RATE = 16_000
ALL_FRAMES = {"fps": 4, "max_frames": 64}


def wav(seconds: float, seed: int) -> bytes:
    """Of one seed, a shorter clip is the beginning of a longer one; at the encoder's own rate."""
    noise = np.random.default_rng(seed).integers(-3000, 3000, int(seconds * RATE)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(noise.tobytes())
    return file.getvalue()


def film(path: Path, start: int, stop: int) -> bytes:
    """Frames [start, stop) of one film at 4 a second, without loss; no audio."""
    source = ["-f", "lavfi", "-i", "testsrc2=size=96x64:rate=4:duration=10"]
    cut = ["-vf", f"trim=start_frame={start}:end_frame={stop},setpts=PTS-STARTPTS", "-pix_fmt", "yuv444p"]
    command = [str(ffmpeg_binary()), "-nostdin", "-y", *source, *cut, "-c:v", "ffv1", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return path.read_bytes()


def encode(client: Client, audio: bytes) -> tuple[ItemAnswer, np.ndarray]:
    (answer,) = client.encode([{"type": "audio", "data": audio}]).items
    assert answer.embedding is not None, answer.error
    return answer, client.embedding(answer.embedding.key)


def test_a_longer_audio_encodes_its_new_window_alone(client: Client) -> None:
    minute, rows = encode(client, wav(60, seed=1))
    longer, more = encode(client, wav(65, seed=1))
    assert minute.segments == SegmentUse(cached=0, encoded=2)
    assert longer.segments == SegmentUse(cached=2, encoded=1)
    assert more.shape == (4500, 384)
    assert more[:3000].tobytes() == rows.tobytes()
    assert longer.metadata is not None
    assert longer.metadata.audio_feature_lengths == (3000, 3000, 500)
    again, _ = encode(client, wav(65, seed=1))
    assert again.cached
    assert again.segments is None


@pytest.mark.parametrize(("model", "groups"), [("real", 8), ("qwen", 4)])
def test_videos_that_overlap_share_their_frames(
    stack: Stack, tmp_path: Path, model: str, groups: int
) -> None:
    """One film; the second clip begins four frames later, so that half of it is known."""
    answers, rows = [], []
    with Client(stack.api_url) as client:
        for start in (0, 4):
            data = film(tmp_path / f"{start}.mkv", start, start + 8)
            item = {"type": "video", "data": data, "options": ALL_FRAMES}
            (answer,) = client.encode([item], model=model).items
            assert answer.embedding is not None, answer.error
            answers.append(answer)
            rows.append(client.embedding(answer.embedding.key))
    assert [answer.segments for answer in answers] == [
        SegmentUse(cached=0, encoded=groups),
        SegmentUse(cached=groups // 2, encoded=groups // 2),
    ]
    half = len(rows[0]) // 2
    assert rows[1][:half].tobytes() == rows[0][half:].tobytes()


def test_what_was_removed_is_encoded_again(stack: Stack, client: Client) -> None:
    first, rows = encode(client, wav(30, seed=2))
    assert first.embedding is not None
    answer = httpx.delete(f"{stack.api_url}/v1/embeddings/{first.embedding.key}")
    assert answer.status_code in (200, 204), answer.text
    second, more = encode(client, wav(35, seed=2))
    assert second.segments == SegmentUse(cached=0, encoded=2)
    np.testing.assert_allclose(more[:1500], rows, rtol=1e-3, atol=1e-3)


def test_the_metrics_tell_of_it(stack: Stack, client: Client) -> None:
    encode(client, wav(31, seed=3))
    text = httpx.get(f"{stack.api_url}/metrics").text
    assert "epd_worker_segments_encoded_total" in text
