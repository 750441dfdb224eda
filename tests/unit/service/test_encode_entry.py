"""The metadata of an embedding says what decoding said of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.contracts.media import RawAudio, RawFrames, RawMedia
from gpu_worker.service.results import entry_of
from tests.store_kit import Stores
from tests.unit.encode_bench import EncodeBench, encoded


@pytest.mark.parametrize("kind", [RawFrames, RawAudio])
@pytest.mark.parametrize("partial", [True, False])
def test_a_file_that_broke_off_is_said_to_be_partial(
    tmp_path: Path, stores: Stores, kind: type[RawMedia], partial: bool
) -> None:
    bench = EncodeBench(tmp_path, stores)
    message = bench.ticket(1).message
    blob = message.raw.blob
    raw: RawMedia = RawAudio(blob=blob, samples=8, sample_rate=4, partial=partial)
    if kind is RawFrames:
        raw = RawFrames(
            blob=blob, frames=1, height=4, width=6, original_size=(6, 4), timestamps=(0.0,),
            duration=1.0, sampled_fps=1.0, source_frames=1, partial=partial,
        )  # fmt: skip
    entry = entry_of(message.model_copy(update={"raw": raw}), bench.card, encoded(3))
    assert entry.metadata.partial is partial
