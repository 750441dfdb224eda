"""ffmpeg as a process: killed with its group, limited in its messages, and a full disk is recognised."""

from __future__ import annotations

import io
import time
from pathlib import Path

import psutil
import pytest

from epd.contracts.errors import BlobSpaceFull, DecodeTimeout
from tests.hostile.bad_server import MEDIA, BadServer
from workers.decode.ffmpeg import file_argument, run_ffmpeg
from workers.fetch.download import download
from workers.limits import FetchLimits

FULL = Path("/dev/full")


def test_the_time_limit_leaves_no_process(tmp_path: Path) -> None:
    slow = ("-re", "-f", "lavfi", "-i", "testsrc2=s=64x48:r=30", "-f", "rawvideo", "-t", "60", "-")
    began = time.monotonic()
    with pytest.raises(DecodeTimeout):
        run_ffmpeg(slow, out=tmp_path / "out", timeout=0.5)
    assert time.monotonic() - began < 3
    assert not [child for child in psutil.Process().children(recursive=True) if "ffmpeg" in child.name()]


def test_messages_are_counted_and_few_are_kept(tmp_path: Path) -> None:
    run = run_ffmpeg(
        ("-f", "mov", "-i", file_argument(MEDIA / "VID-20.mp4"), "-f", "null", "-"),
        out=tmp_path / "out",
        timeout=20,
    )
    assert run.is_faulty
    assert run.failures > 20
    assert len(run.last) <= 20
    assert max(map(len, run.last)) <= 300


def test_the_reason_shows_no_path(tmp_path: Path) -> None:
    secret = tmp_path / "secret-name.mp4"
    secret.write_bytes(b"\0\0\0\x08wide" + bytes(64))
    run = run_ffmpeg(
        ("-f", "mov", "-i", file_argument(secret), "-f", "null", "-"), out=tmp_path / "out", timeout=20
    )
    assert run.code != 0
    assert run.reason
    assert "secret-name" not in run.reason
    assert "0x" not in run.reason


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_recognised(bad_server: BadServer) -> None:
    run = run_ffmpeg(
        ("-f", "mov", "-i", file_argument(MEDIA / "VID-25.mp4"), "-f", "rawvideo", "-"), out=FULL, timeout=20
    )
    assert run.is_disk_full
    limits = FetchLimits(max_bytes=1 << 20, allow_hosts=(bad_server.authority,))
    with FULL.open("wb", buffering=0) as raw, pytest.raises(BlobSpaceFull):
        download(bad_server.url("/ok.png"), into=_Unseekable(raw), limits=limits)


class _Unseekable(io.RawIOBase):
    """/dev/full cannot be cut to length, so only its writes are passed on."""

    def __init__(self, inner: io.RawIOBase) -> None:
        self._inner = inner

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset + whence

    def truncate(self, size: int | None = None) -> int:
        return size or 0

    def write(self, data: object) -> int | None:
        return self._inner.write(data)  # type: ignore[arg-type]
