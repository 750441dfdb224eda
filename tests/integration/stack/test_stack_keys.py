"""Media that other caches mix up, through real decoding and a real encoder: each has an entry of its own."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from epd.client import Client
from epd.contracts.job import State
from epd.contracts.responses import ItemAnswer

CASES = Path(__file__).parents[2] / "hostile" / "media"
#: EXIF tags: camera, its maker, when, and the picture's own id, which cameras that are reset give twice.
_SAME_EXIF = {0x010F: "Maker", 0x0110: "Model"}
_SAME_SHOT = {0x9003: "2026:11:30 02:00:00", 0xA420: "0123456789abcdef0123456789abcdef"}
_ORIENTATION = 0x0112


def _pixels(seed: int, height: int = 84, width: int = 112) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def _plain(image: Image.Image, kind: str = "BMP", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _shot(image: Image.Image, orientation: int = 1) -> bytes:
    """With the same camera, time and picture id, not compressed: equal pixels in number, equal bytes too."""
    exif = Image.Exif()
    exif.update({**_SAME_EXIF, _ORIENTATION: orientation})
    exif.get_ifd(0x8769).update(_SAME_SHOT)
    return _plain(image, "PNG", exif=exif, compress_level=0)


def _case(name: str) -> bytes:
    return (CASES / name).read_bytes()


def _tone(hertz: float) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        samples = np.sin(np.arange(16_000) * 2 * np.pi * hertz / 16_000) * 9000
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def _clip(seed: int) -> bytes:
    """Eight frames of one grey each, as a GIF: equal in size, count and times."""
    levels = np.random.default_rng(seed).integers(20, 235, 8)
    frames = [Image.new("L", (112, 84), int(level)) for level in levels]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=250)
    return buffer.getvalue()


def _one_pixel_apart() -> tuple[bytes, bytes]:
    first, second = _pixels(8), _pixels(8)
    second.putpixel((111, 83), (0, 0, 0))
    return _plain(first), _plain(second)


def _grey(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.full((height, width, 3), 90, dtype=np.uint8))


@dataclass(frozen=True)
class Pair:
    """Two files of a type, and whether they are alike in bytes and in tokens."""

    type: str
    make: Callable[[], tuple[bytes, bytes]]
    equal_bytes: bool = True


PAIRS = {
    "equal size and length": Pair("image", lambda: (_plain(_pixels(1)), _plain(_pixels(2)))),
    "one pixel apart": Pair("image", _one_pixel_apart),
    "equal EXIF identity": Pair("image", lambda: (_shot(_pixels(3)), _shot(_pixels(4)))),
    "equal pixels, turned by EXIF": Pair("image", lambda: (_shot(_pixels(5)), _shot(_pixels(5), 6))),
    "transposed sizes": Pair(
        "image", lambda: (_case("CAC-01a.png"), _case("CAC-01b.png")), equal_bytes=False
    ),
    "equal bytes of pixels in another shape": Pair(
        "image", lambda: (_plain(_grey(56, 112)), _plain(_grey(112, 56)))
    ),
    "sound of equal length": Pair("audio", lambda: (_tone(220), _tone(440))),
    "frames of equal size and times": Pair("video", lambda: (_clip(6), _clip(7)), equal_bytes=False),
}


def _encode(client: Client, type_: str, files: list[bytes], **options: object) -> list[ItemAnswer]:
    items = [{"type": type_, "data": data, "options": options} for data in files]
    job = client.encode(items, model="qwen")
    assert job.state is State.DONE, [item.error for item in job.items]
    return list(job.items)


@pytest.mark.parametrize("name", PAIRS)
def test_each_of_a_pair_has_its_own_entry(client: Client, name: str) -> None:
    pair = PAIRS[name]
    files = list(pair.make())
    assert (len(files[0]) == len(files[1])) >= pair.equal_bytes
    first, second = _encode(client, pair.type, files)
    assert first.embedding is not None
    assert second.embedding is not None
    assert first.embedding.key != second.embedding.key
    assert first.embedding.shape == second.embedding.shape
    assert first.metadata is not None
    assert second.metadata is not None
    assert first.metadata.content_digest != second.metadata.content_digest
    rows = [client.embedding(item.embedding.key) for item in (first, second) if item.embedding]
    grids_differ = first.metadata.grid_thw != second.metadata.grid_thw
    assert grids_differ or np.abs(rows[0] - rows[1]).max() > 0
    again = _encode(client, pair.type, files[::-1])
    assert [item.cached for item in again] == [True, True]
    assert [item.embedding for item in again] == [second.embedding, first.embedding]
    for item, kept in zip(again, rows[::-1], strict=True):
        assert item.embedding is not None
        np.testing.assert_array_equal(client.embedding(item.embedding.key), kept)


def test_transposed_sizes_have_transposed_grids(client: Client) -> None:
    files = [_case("CAC-01a.png"), _case("CAC-01b.png")]
    grids = [item.metadata.grid_thw for item in _encode(client, "image", files) if item.metadata]
    assert sorted(grids) == [(1, 2, 10), (1, 10, 2)]


def test_one_file_with_other_options_has_other_entries(client: Client) -> None:
    """CAC-02: 64 tokens as it is, 16 with at most 12544 pixels."""
    data = _case("CAC-02.png")
    (default,) = _encode(client, "image", [data])
    (small,) = _encode(client, "image", [data], max_pixels=12_544)
    (default_again,) = _encode(client, "image", [data])
    tokens = [item.embedding.shape[0] for item in (default, small, default_again) if item.embedding]
    assert tokens == [64, 16, 64]
    assert default.embedding == default_again.embedding
    assert default_again.cached


def test_metadata_names_revision_and_size_of_the_source(client: Client) -> None:
    data = _plain(_pixels(11))
    (item,) = _encode(client, "image", [data])
    card = next(one.card for one in client.models().encoders if one.name == "qwen")
    assert card is not None
    assert item.metadata is not None
    assert item.metadata.weights_digest == card.weights_digest
    assert item.metadata.source_bytes == len(data)
