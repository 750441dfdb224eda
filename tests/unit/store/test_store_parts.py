"""The store's parts that need no server: texts of finished parts, chunks of keys, error messages."""

from __future__ import annotations

import json

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as ConnectionLost

from epd.contracts.embedding import AudioTrackInfo, EmbeddingRef, Entry, Metadata
from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import PartRecord, SegmentUse
from epd.contracts.media import Modality
from epd.store.connection import CHUNK_SIZE, answering, chunks
from epd.store.flights import done_text

KEY = "c" * 64
ENTRY = Entry(
    ref=EmbeddingRef(key=KEY, shape=(16, 3), dtype="float32", nbytes=192),
    metadata=Metadata(
        embedding_key=KEY,
        content_digest="d" * 64,
        modality=Modality.VIDEO,
        encoder='tower "one" \N{LATIN SMALL LETTER O WITH DIAERESIS}\\',
        dtype="float32",
        token_count=16,
        hidden=3,
        grid_thw=(1, 4, 4),
        video_timestamps=(0.1, 2.0),
        partial=True,
        audio=AudioTrackInfo(present=True, seconds=1e-7),
    ),
)


@pytest.mark.parametrize("timings", [{}, {"fetch": 0.1, "forward": 1e-9, "write": 123456.789, "stage": 0.0}])
def test_the_text_of_a_finished_part_equals_that_of_the_model(timings: dict[str, float]) -> None:
    expected = PartRecord.done(ENTRY, timings)
    text = done_text(ENTRY.ref.to_json(), ENTRY.metadata.to_json(), timings)
    assert PartRecord.from_json(text) == expected
    assert json.loads(text) == json.loads(expected.to_json())


def test_the_text_of_a_finished_part_counts_its_segments() -> None:
    use = SegmentUse(cached=2, encoded=0)
    text = done_text(ENTRY.ref.to_json(), ENTRY.metadata.to_json(), {"fetch": 0.1}, use)
    assert PartRecord.from_json(text) == PartRecord.done(ENTRY, {"fetch": 0.1}, segments=use)


@pytest.mark.parametrize("count", [0, 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE])
def test_chunks_hold_all_in_order(count: int) -> None:
    parts = list(chunks(range(count)))
    assert [one for part in parts for one in part] == list(range(count))
    assert all(0 < len(part) <= CHUNK_SIZE for part in parts)


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", "the store refuses (MISCONF)"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "the store refuses (OOM)"),
        ("ERR unknown command for key 10.0.0.7", "the store refuses (ERR)"),
        ("something else of 10.0.0.7", "the store refuses (error)"),
    ],
)
def test_a_refusal_is_reported_by_its_code_alone(answer: str, reported: str) -> None:
    with pytest.raises(StoreUnavailable) as caught, answering():
        raise BaseParser.parse_error(answer)
    assert str(caught.value) == reported


def test_a_lost_connection_is_reported_as_no_answer() -> None:
    with pytest.raises(StoreUnavailable, match="does not answer: ConnectionError"), answering():
        raise ConnectionLost("10.0.0.7 refused")
