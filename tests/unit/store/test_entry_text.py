"""The text of an index entry: it reads back as it was, is small, and takes fields without a letter."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from epd.contracts.embedding import AudioTrackInfo, Entry, Metadata
from epd.contracts.media import Modality
from epd.store.cache import entry as module
from epd.store.cache.entry import entry_text, read_entry, ref_of

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
def test_what_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, ValidationError)):
        read_entry(KEY, text)


def test_an_unknown_dtype_has_no_reference() -> None:
    with pytest.raises(ValueError, match="float8"):
        ref_of(FULL.model_copy(update={"dtype": "float8"}))
