"""Dispatcher, engine and store: longer and overlapping items encode only what is new, to the last bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import SegmentUse
from epd.store.records import SegmentPlace
from gpu_worker.encoders.base import Encoder
from gpu_worker.service.tickets import TaskStatus
from tests.quick import quick
from tests.store_kit import Databases, Stores
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.service.encode_bench import wait_for
from tests.unit.service.segment_rig import Rig


def audio(seconds: float, seed: int = 1) -> NDArray[np.float32]:
    """Of one seed, a shorter clip is the beginning of a longer one."""
    noise = np.random.default_rng(seed).standard_normal(int(seconds * 16_000), np.float32)
    return np.asarray(noise * 0.1, np.float32)


def frames(start: int, stop: int, size: tuple[int, int] = (60, 90)) -> NDArray[np.uint8]:
    """Frames [start, stop) of one endless film."""
    film = [
        np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8) for number in range(start, stop)
    ]
    return np.stack(film)


@pytest.fixture(scope="module", params=quick(["whisper", "qwen2_audio"], "whisper"))
def ear(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder(request.param, tmp_path_factory.mktemp("ear"))


@pytest.fixture(scope="module", params=quick(["dinov2", "qwen2_5_vl", "qwen3_vl"], "qwen2_5_vl"))
def eye(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder(request.param, tmp_path_factory.mktemp("eye"))


@pytest.fixture
def hearing(tmp_path: Path, stores: Stores, ear: Encoder) -> Iterator[Rig]:
    rig = Rig(tmp_path, stores, ear)
    yield rig
    rig.close()


@pytest.fixture
def seeing(tmp_path: Path, stores: Stores, eye: Encoder) -> Iterator[Rig]:
    rig = Rig(tmp_path, stores, eye)
    yield rig
    rig.close()


def test_a_longer_audio_encodes_what_is_new(hearing: Rig) -> None:
    first, short = hearing.encode(audio(60))
    second, long = hearing.encode(audio(65))
    assert first.segments == SegmentUse(cached=0, encoded=2)
    assert second.segments == SegmentUse(cached=2, encoded=1)
    assert long[: len(short)] == short, "the rows of the first encode, bit for bit"
    assert (hearing.count("segments_reused"), hearing.count("segments_encoded")) == (2, 3)
    assert second.metadata is not None
    assert second.metadata.token_count * hearing.card.hidden * 4 == len(long)
    assert second.metadata.audio_feature_lengths == (3000, 3000, 500)


def test_the_new_rows_are_those_of_a_fresh_encode(hearing: Rig) -> None:
    _, fresh = hearing.encode(audio(65))
    hearing.store.embeddings.remove(known(hearing))
    hearing.encode(audio(30))
    _, joined = hearing.encode(audio(65))
    ours, theirs = (np.frombuffer(data, np.float32) for data in (joined, fresh))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def known(rig: Rig) -> list[str]:
    page = rig.store.embeddings.scan()
    return [row.entry.ref.key for row in page.rows]


def test_the_same_audio_in_another_file_runs_no_forward(hearing: Rig) -> None:
    _, rows = hearing.encode(audio(10))
    batches = hearing.count("encode_batches")
    both = np.concatenate([audio(30, seed=2), audio(30, seed=3)])
    hearing.encode(both)
    swapped = np.concatenate([audio(30, seed=3), audio(30, seed=2)])
    record, back = hearing.encode(swapped)
    assert record.segments == SegmentUse(cached=2, encoded=0)
    assert hearing.count("encode_batches") == batches + 1
    half = len(back) // 2
    _, straight = hearing.encode(both)
    assert back[half:] + back[:half] == straight
    assert len(hearing.deliverer.begun) == 4
    assert len(rows) > 0


def test_what_is_in_the_middle_is_found_too(hearing: Rig) -> None:
    middle = audio(30, seed=9)
    _, alone = hearing.encode(middle)
    record, rows = hearing.encode(np.concatenate([audio(30, seed=4), middle, audio(12, seed=5)]))
    assert record.segments == SegmentUse(cached=1, encoded=2)
    assert rows[len(alone) : 2 * len(alone)] == alone


def test_overlapping_videos_share_their_frames(seeing: Rig) -> None:
    first, _ = seeing.encode(frames(0, 8))
    second, rows = seeing.encode(frames(4, 12))
    assert first.segments is not None
    count = first.segments.encoded
    assert second.segments == SegmentUse(cached=count // 2, encoded=count // 2)
    _, before = seeing.encode(frames(0, 8))
    assert rows[: len(rows) // 2] == before[len(before) // 2 :]


def test_other_sizes_of_the_same_bytes_are_other_segments(seeing: Rig) -> None:
    seeing.encode(frames(0, 4))
    record, _ = seeing.encode(frames(0, 4).reshape(4, 90, 60, 3))
    assert record.segments is not None
    assert record.segments.cached == 0


def test_a_parent_that_was_evicted_is_a_miss(hearing: Rig) -> None:
    _, before = hearing.encode(audio(60))
    hearing.store.embeddings.remove(known(hearing))
    record, rows = hearing.encode(audio(65))
    assert record.segments == SegmentUse(cached=0, encoded=3)
    assert np.allclose(
        np.frombuffer(rows[: len(before)], np.float32), np.frombuffer(before, np.float32), atol=1e-4
    )
    again, _ = hearing.encode(audio(70))
    assert again.segments == SegmentUse(cached=2, encoded=1), "the newer embedding is the parent now"


@pytest.mark.parametrize("harm", ["rows", "short", "gone", "other"])
def test_a_parent_that_was_harmed_is_a_miss(hearing: Rig, databases: Databases, harm: str) -> None:
    first, _ = hearing.encode(audio(60))
    assert first.ref is not None
    path = hearing.store.embeddings.path(first.ref.key)
    data = bytearray(path.read_bytes())
    if harm == "rows":
        data[-1000] ^= 0xFF  # in the second window
        path.write_bytes(data)
    elif harm == "short":
        path.write_bytes(data[:-4])
    elif harm == "gone":
        path.unlink()
    else:
        other, _ = hearing.encode(audio(60, seed=7))
        assert other.ref is not None
        path.write_bytes(hearing.store.embeddings.path(other.ref.key).read_bytes())
    record, rows = hearing.encode(audio(65))
    assert (
        record.segments == SegmentUse(cached=1, encoded=2)
        if harm == "rows"
        else SegmentUse(cached=0, encoded=3)
    )
    with databases.empty() as stores:
        fresh = Rig(hearing.settings.blob_dir.parent / "fresh", stores, encoder_of(hearing))
        try:
            _, expected = fresh.encode(audio(65))
        finally:
            fresh.close()
    assert np.allclose(np.frombuffer(rows, np.float32), np.frombuffer(expected, np.float32), atol=1e-4)


def encoder_of(rig: Rig) -> Encoder:
    return next(iter(rig.engine._encoders.values()))


def test_wrong_places_are_misses(hearing: Rig) -> None:
    record, _ = hearing.encode(audio(30))
    assert record.ref is not None
    rows = record.ref.tokens
    find = hearing.store.segments.find
    for place in (
        SegmentPlace("f" * 64, 0, rows, 0),
        SegmentPlace(record.ref.key, 1, rows, 0),
        SegmentPlace(record.ref.key, 0, rows - 1, 0),
        SegmentPlace(record.ref.key, 0, rows, 12345),
    ):
        hearing.store.segments.find = lambda keys, place=place: [place] * len(keys)  # type: ignore[method-assign]
        answer, _ = hearing.encode(audio(30 + np.random.default_rng().uniform(1, 5)))
        assert answer.segments is not None
        assert answer.segments.cached == 0
    hearing.store.segments.find = find  # type: ignore[method-assign]


def test_a_parent_that_is_evicted_after_the_look_is_read_all_the_same(hearing: Rig) -> None:
    """Its file is held open from the look on."""
    _, before = hearing.encode(audio(60))
    submit, gate = hearing.engine.submit, threading.Event()

    def evict_first(slot: Any) -> bool:
        hearing.store.embeddings.remove(known(hearing))
        gate.set()
        return submit(slot)

    hearing.engine.submit = evict_first  # type: ignore[method-assign]
    record, rows = hearing.encode(audio(65))
    assert gate.is_set()
    assert record.segments == SegmentUse(cached=2, encoded=1)
    assert rows[: len(before)] == before


@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_known_rows_that_are_harmed_after_the_look_send_the_item_back(hearing: Rig, harm: str) -> None:
    first, _ = hearing.encode(audio(60))
    assert first.ref is not None
    path, submit = hearing.store.embeddings.path(first.ref.key), hearing.engine.submit

    def harm_first(slot: Any) -> bool:
        with path.open("r+b") as file:
            if harm == "cut":
                file.truncate(1000)
            else:
                file.seek(-1000, 2)
                file.write(b"harm")
        return submit(slot)

    hearing.engine.submit = harm_first  # type: ignore[method-assign]
    message = hearing.message(audio(65), 2.0)
    hearing.dispatcher.accept("harmed", message.to_document())
    wait_for(lambda: "harmed" in hearing.deliverer.results)
    assert hearing.deliverer.results["harmed"].status is TaskStatus.REFETCHED
    (again,) = hearing.outbox.fetches
    assert (again.job_id, again.attempt) == (message.job_id, 1)
    hearing.engine.submit = submit  # type: ignore[method-assign]
    record, _ = hearing.encode(audio(65))
    assert record.segments == SegmentUse(cached=int(harm == "changed"), encoded=2 + int(harm == "cut"))


def test_without_the_store_all_is_encoded(hearing: Rig) -> None:
    def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    hearing.store.segments.find = away  # type: ignore[method-assign]
    hearing.store.segments.note = away  # type: ignore[method-assign]
    record, _ = hearing.encode(audio(35))
    assert record.segments is None
    hearing.encode(audio(40))


def test_files_of_known_rows_are_let_go(hearing: Rig) -> None:
    hearing.encode(audio(60))
    hearing.encode(audio(65))
    folder = str(hearing.settings.embedding_dir)

    def open_files() -> list[str]:
        links = Path("/proc/self/fd").iterdir()
        return [name for link in links if (name := str(link.resolve())).startswith(folder)]

    wait_for(lambda: open_files() == [])


def test_images_have_no_segments(tmp_path: Path, stores: Stores, eye: Encoder) -> None:
    rig = Rig(tmp_path, stores, eye)
    try:
        rig.encode(frames(0, 4))
        assert rig.store.segments.count() == rig.count("segments_encoded")
    finally:
        rig.close()
