"""Blob space is reserved before bytes are written: by the header, and again if the header is wrong."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from epd.contracts.embedding import AudioRules, VideoRules
from epd.contracts.errors import BlobSpaceFull, EpdError
from epd.contracts.media import ItemOptions, Modality
from tests.hostile.bad_server import MEDIA, BadServer
from workers.decode.decode import decode
from workers.fetch.download import download
from workers.limits import DecodeLimits, FetchLimits

RULES = {
    Modality.IMAGE: None,
    Modality.VIDEO: VideoRules(fps=2, min_frames=2, max_frames=16),
    Modality.AUDIO: AudioRules(sample_rate=16_000),
}
SUFFIXES = {"IMG": Modality.IMAGE, "VID": Modality.VIDEO, "AUD": Modality.AUDIO}
FILES = sorted(path.name for path in MEDIA.iterdir() if path.name[:3] in SUFFIXES)


class Holder:
    """A ``hold`` that notes how large the output was at each call, and refuses what is over ``limit``."""

    def __init__(self, size: Callable[[], int], limit: int = 1 << 40) -> None:
        self.held: list[int] = []
        self.sizes: list[int] = []
        self._size = size
        self._limit = limit

    def __call__(self, nbytes: int) -> None:
        if nbytes > self._limit:
            raise BlobSpaceFull("full")
        self.held.append(nbytes)
        self.sizes.append(self._size())


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def run(name: str, out: Path, holder: Holder) -> int:
    modality = SUFFIXES[name[:3]]
    limits = replace(DecodeLimits(), hold=holder, timeout=60)
    raw = decode(
        MEDIA / name,
        modality=modality,
        options=ItemOptions(),
        rules=RULES[modality],
        limits=limits,
        out=out,
    )
    return raw.blob.nbytes


@pytest.mark.parametrize("name", FILES)
def test_no_output_is_larger_than_what_was_held(tmp_path: Path, name: str) -> None:
    out = tmp_path / "blob"
    holder = Holder(lambda: size_of(out))
    try:
        nbytes = run(name, out, holder)
    except EpdError:
        return  # what cannot be decoded is other tests' matter
    assert holder.sizes[0] == 0
    assert nbytes <= max(holder.held)


@pytest.mark.parametrize("name", FILES)
def test_without_room_nothing_is_written(tmp_path: Path, name: str) -> None:
    out = tmp_path / "blob"
    with pytest.raises(EpdError):
        run(name, out, Holder(lambda: size_of(out), limit=0))
    assert not out.exists()


def test_an_image_and_a_clip_hold_no_more_than_they_take(tmp_path: Path) -> None:
    for name in ("IMG-01.jpg", "VID-01.mp4"):
        holder = Holder(lambda: 0)
        assert run(name, tmp_path / "blob", holder) == max(holder.held)


@pytest.fixture
def fetch_limits(bad_server: BadServer) -> FetchLimits:
    return FetchLimits(max_bytes=1 << 25, allow_hosts=(bad_server.authority,), retries=0)


def test_a_stated_length_is_held_before_the_first_byte(
    bad_server: BadServer, fetch_limits: FetchLimits
) -> None:
    file = io.BytesIO()
    holder = Holder(lambda: len(file.getvalue()))
    got = download(bad_server.url("/ok.png"), into=file, limits=replace(fetch_limits, hold=holder))
    assert (holder.held, holder.sizes) == ([got.nbytes], [0])


def test_a_body_of_unknown_length_holds_more_as_it_comes(
    bad_server: BadServer, fetch_limits: FetchLimits
) -> None:
    file = io.BytesIO()
    holder = Holder(lambda: len(file.getvalue()), limit=5 << 20)
    with pytest.raises(BlobSpaceFull):
        download(bad_server.url("/endless"), into=file, limits=replace(fetch_limits, hold=holder))
    assert holder.held == [1 << 20, 2 << 20, 4 << 20]
    assert len(file.getvalue()) <= 4 << 20
