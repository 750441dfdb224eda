"""Rows, grid and token count of an embedding have to agree."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from epd.contracts.embedding import AudioTrackInfo, EmbeddingRef, Entry, Metadata
from epd.contracts.media import Modality

KEY = "a" * 64


def _metadata(**changes: Any) -> Metadata:
    fields = {
        "embedding_key": KEY,
        "content_digest": "b" * 64,
        "modality": Modality.VIDEO,
        "encoder": "tower",
        "dtype": "bfloat16",
        "token_count": 48,
        "hidden": 64,
        "grid_thw": (2, 8, 12),
        "merge_size": 2,
    }
    return Metadata.model_validate(fields | changes)


def _ref(rows: int) -> EmbeddingRef:
    return EmbeddingRef(key=KEY, shape=(rows, 64), dtype="bfloat16", nbytes=rows * 128)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"grid_thw": (1, 16, 16), "merge_size": None, "prefix_tokens": 1, "token_count": 257},
        {"grid_thw": None, "merge_size": None, "token_count": 1500},
        {"grid_thw": (3, 2, 2), "merge_size": 1, "prefix_tokens": 1, "token_count": 15},
    ],
)
def test_a_grid_that_gives_the_count_is_taken(fields: dict[str, Any]) -> None:
    metadata = _metadata(**fields)
    assert metadata.tokens_of_grid() in (None, metadata.token_count)
    assert Metadata.from_json(metadata.to_json()) == metadata


@pytest.mark.parametrize(
    "fields",
    [
        {"token_count": 47},
        {"token_count": 0, "grid_thw": None},
        {"prefix_tokens": 1},
        {"merge_size": 1},
        {"grid_thw": (0, 8, 12)},
        {"colour": "red"},
        {"audio_seconds": float("nan")},
    ],
)
def test_what_does_not_agree_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _metadata(**fields)


def test_rows_and_token_count_agree() -> None:
    entry = Entry(ref=_ref(48), metadata=_metadata(audio=AudioTrackInfo(present=True, seconds=1.5)))
    assert Entry.from_json(entry.to_json()) == entry
    with pytest.raises(ValidationError, match="47 rows, metadata says 48"):
        Entry(ref=_ref(47), metadata=_metadata())


@pytest.mark.parametrize("key", ["", "A" * 64, "a" * 63, "../" + "a" * 61])
def test_a_key_is_64_hex_digits(key: str) -> None:
    with pytest.raises(ValidationError):
        EmbeddingRef(key=key, shape=(1, 1), dtype="float32", nbytes=4)
