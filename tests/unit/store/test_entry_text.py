"""Index entries: their text, their packed timestamps, and the checked parts that are remembered."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from epd.contracts.embedding import AudioTrackInfo, EmbeddingRef, Entry, Metadata
from epd.contracts.job import PartRecord
from epd.contracts.media import Modality
from epd.store.cache import entry as module
from epd.store.cache.async_cache import PartMemory
from epd.store.cache.entry import entry_text, pack_times, read_entry, ref_of, unpack_times
from epd.store.files.embedding_folder import EmbeddingFolder

KEY, DIGEST, REVISION = "a" * 64, "b" * 64, "c" * 64
FULL = Metadata(
    embedding_key=KEY,
    content_digest=DIGEST,
    modality=Modality.VIDEO,
    encoder="tower",
    dtype="bfloat16",
    token_count=6 * 5,
    hidden=2048,
    grid_thw=(6, 4, 4),
    merge_size=2,
    prefix_tokens=1,
    second_per_grid_ts=0.1,
    video_timestamps=(0.0, 0.1, 1 / 3, 1e-9),
    audio_feature_lengths=(3000, 1),
    audio_seconds=30.01,
    deepstack_levels=3,
    original_size=(1920, 1080),
    source_frames=240,
    partial=True,
    audio=AudioTrackInfo(present=True, seconds=1.5),
    weights_digest=REVISION,
    source_bytes=123_456,
)


def _entry(metadata: Metadata) -> Entry:
    return Entry(ref=ref_of(metadata), metadata=metadata)


def test_every_field_comes_back() -> None:
    at_default = {name for name in Metadata.model_fields if getattr(FULL, name) is None}
    assert at_default == set()
    assert read_entry(KEY, entry_text(_entry(FULL))) == _entry(FULL)


def test_every_field_has_a_letter_of_its_own() -> None:
    assert set(module._LETTERS) | {"embedding_key"} == set(Metadata.model_fields)
    assert len(set(module._LETTERS.values())) == len(module._LETTERS)


def test_a_field_without_a_letter_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (module._LETTERS, module._NAMES):
        monkeypatch.delitem(table, "audio_seconds" if table is module._LETTERS else "l")
    text = entry_text(_entry(FULL))
    assert '"audio_seconds":30.01' in text
    assert read_entry(KEY, text) == _entry(FULL)


def test_an_image_is_small() -> None:
    image = Metadata(
        embedding_key=KEY,
        content_digest=DIGEST,
        modality=Modality.IMAGE,
        encoder="qwen-vision",
        dtype="bfloat16",
        token_count=2691,
        hidden=3584,
        grid_thw=(1, 78, 138),
        merge_size=2,
        original_size=(1920, 1080),
        source_frames=1,
        weights_digest=REVISION,
        source_bytes=400_000,
    )
    assert len(entry_text(_entry(image))) < 270


@pytest.mark.parametrize("text", ["", "[]", "1", "{}", '{"d":1}', "not json"])
def test_unreadable_text_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, ValidationError)):
        read_entry(KEY, text)


def test_an_unknown_dtype_has_no_reference() -> None:
    with pytest.raises(ValueError, match="float8"):
        ref_of(FULL.model_copy(update={"dtype": "float8"}))


#: Ticks a second of mp4, matroska, transport streams and GIFs, and NTSC's rate.
BASES = [
    Fraction(1, 12_800),
    Fraction(1, 1000),
    Fraction(1, 90_000),
    Fraction(1, 100),
    Fraction(1001, 30_000),
]


def _text(times: list[float]) -> bytes:
    return orjson.dumps(pack_times(times))


def _back(times: list[float]) -> list[float]:
    return unpack_times(orjson.loads(_text(times)))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("step", [1, 15, 50, 6400, 7])
def test_even_times_are_one_run(base: Fraction, step: int) -> None:
    times = [float(step * number * base) for number in range(3600)]
    assert _back(times) == times
    assert len(_text(times)) < 50


@given(
    st.sampled_from(BASES),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=40),
)
def test_times_of_files_come_back(base: Fraction, steps: list[int]) -> None:
    times, tick = [], 0
    for step in steps:
        tick += step
        times.append(float(tick * base))
    assert _back(times) == times


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_any_times_come_back(times: list[float]) -> None:
    assert _back(times) == times


@pytest.mark.parametrize(
    "times", [[0.0], [1 / 3, 1e-9, 0.1], [0.0, 0.0], [5.0, 1.0], [1e308], [0.5, 1e16], [-1e19, 0.1]]
)
def test_odd_times_come_back(times: list[float]) -> None:
    assert _back(times) == times


BROKEN = [{}, {"s": 0, "r": [1, 1]}, {"s": 1}, {"s": 1, "r": [1]}, {"s": "a", "r": [1, 1]}, {"s": 1, "r": 1}]


@pytest.mark.parametrize("value", BROKEN)
def test_an_invalid_packed_value_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unpack_times(value)


def made(folder: EmbeddingFolder, number: int) -> Entry:
    key = f"{number:064x}"
    ref = EmbeddingRef(key=key, shape=(2, 4), dtype="float32", nbytes=32)
    metadata = Metadata(
        embedding_key=key, content_digest=key, modality=Modality.IMAGE, encoder="eye", dtype="float32",
        token_count=2, hidden=4,
    )  # fmt: skip
    folder.publish(ref, memoryview(bytes(32)), {})
    return Entry(ref=ref, metadata=metadata)


def test_a_part_is_remembered_until_its_text_or_file_changes(tmp_path: Path) -> None:
    folder = EmbeddingFolder(tmp_path)
    entry, memory = made(folder, 1), PartMemory(folder)
    key, text = entry.ref.key, entry_text(entry)
    first = memory.part(key, text)
    assert first is not None
    assert first.record == PartRecord.done(entry, cached=True)
    assert first.text == first.record.to_json()
    assert memory.part(key, text) is first
    other = entry_text(
        entry.model_copy(update={"metadata": entry.metadata.model_copy(update={"partial": True})})
    )
    changed = memory.part(key, other)
    assert changed is not None
    assert changed.record.metadata is not None
    assert changed.record.metadata.partial
    assert memory.part(key, "no entry") is None
    folder.remove(key)
    assert memory.part(key, text) is None
    made(folder, 1)
    again = memory.part(key, text)
    assert again is not None
    assert again.record == first.record


def test_the_most_recently_used_parts_stay(tmp_path: Path) -> None:
    folder = EmbeddingFolder(tmp_path)
    entries = [made(folder, number) for number in range(4)]
    memory = PartMemory(folder, limit=2)
    first = memory.part(entries[0].ref.key, entry_text(entries[0]))
    memory.part(entries[1].ref.key, entry_text(entries[1]))
    assert memory.part(entries[0].ref.key, entry_text(entries[0])) is first
    memory.part(entries[2].ref.key, entry_text(entries[2]))
    assert memory.part(entries[0].ref.key, entry_text(entries[0])) is first
    assert memory._known.cache_info().currsize == 2
