"""Out of memory at every step: a batch gets smaller, an item fails alone at the end, the engine lives on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.gpu.twin_streams import TwinStreams
from epd.contracts.errors import EncodeFailed
from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.engine import staging
from gpu_worker.engine.slot import Encoded, Failed, Slot
from gpu_worker.engine.stream_device import StreamDevice
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.engine_rig import Rig, rows_of, wait_until

#: Bytes of an image of the rig.
IMAGE = 30 * 40 * 3
RING = 1 << 20


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder("dinov2", tmp_path_factory.mktemp("eye"))


@pytest.fixture
def streams() -> Iterator[TwinStreams]:
    streams = TwinStreams()
    yield streams
    streams.close()


@pytest.fixture
def rig(eye: Encoder, tmp_path: Path, streams: TwinStreams) -> Iterator[Rig]:
    rig = Rig(eye, tmp_path, StreamDevice(streams, RING))
    yield rig
    rig.end()


def lives_on(rig: Rig) -> None:
    (slot,) = rig.submit(77)
    rig.watcher.wait(len(rig.watcher.outcomes) + 1)
    assert isinstance(rig.watcher.outcomes[slot.id], Encoded)


def all_encoded(rig: Rig, slots: list[Slot]) -> bool:
    return all(isinstance(rig.watcher.outcomes[slot.id], Encoded) for slot in slots)


def error_of(rig: Rig, slot: Slot) -> EncodeFailed:
    outcome = rig.watcher.outcomes[slot.id]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, EncodeFailed)
    return outcome.error


# upload


def test_a_batch_that_finds_no_room_is_staged_in_parts(rig: Rig, streams: TwinStreams) -> None:
    rig.hold_one_batch()
    streams.capacity = 3 * IMAGE  # one runs, so there is room for two of the four
    slots = rig.submit(1, 2, 3, 4)
    wait_until(lambda: streams.freed_caches > 0)
    rig.runner.gate.set()
    rig.watcher.wait(5)
    assert all_encoded(rig, slots)
    assert max(rig.runner.sizes) <= 3
    lives_on(rig)


def test_an_item_that_fits_once_the_running_batch_is_gone_waits_for_it(
    rig: Rig, streams: TwinStreams
) -> None:
    rig.hold_one_batch()
    streams.capacity = IMAGE
    slots = rig.submit(1, 2)
    wait_until(lambda: streams.freed_caches > 0)
    assert rig.watcher.outcomes == {}
    rig.runner.gate.set()
    rig.watcher.wait(3)
    assert all_encoded(rig, slots)


def test_an_item_that_never_fits_fails_alone(rig: Rig, streams: TwinStreams) -> None:
    streams.capacity = 4 * IMAGE
    large = rig.slot(9, height=60, width=100)
    rig.hold_one_batch()
    first = rig.submit(1)
    assert rig.engine.submit(large)
    last = rig.submit(2)
    rig.runner.gate.set()
    rig.watcher.wait(4)
    assert "out of memory" in str(error_of(rig, large))
    assert all_encoded(rig, [*first, *last])
    lives_on(rig)


def test_slots_that_wait_for_room_are_given_back_at_the_end(rig: Rig, streams: TwinStreams) -> None:
    first = rig.hold_one_batch()
    streams.capacity = 0
    slots = rig.submit(1, 2)
    wait_until(lambda: streams.freed_caches > 0)
    left = rig.engine.stop(0.2)
    assert {slot.id for slot in left} == {slot.id for slot in slots}
    assert first.id not in {slot.id for slot in left}


def test_a_blob_that_cannot_be_mapped_fails_alone_and_is_not_missing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_fields: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(staging.mmap, "mmap", refused)
    (slot,) = rig.submit(1)
    rig.watcher.wait(1)
    assert "out of memory" in str(error_of(rig, slot))
    monkeypatch.undo()
    lives_on(rig)


# pinned memory


def test_without_pinned_memory_uploads_and_downloads_go_on(eye: Encoder, tmp_path: Path) -> None:
    streams = TwinStreams(pinnable=100)
    device = StreamDevice(streams, RING)
    rig = Rig(eye, tmp_path, device)
    slots = rig.submit(1, 2, 3)
    rig.watcher.wait(3)
    assert all_encoded(rig, slots)
    assert device.staging_bytes() == 0
    rig.end()
    streams.close()


def test_what_is_pinned_is_measured(rig: Rig) -> None:
    assert rig.engine.staging_bytes() == RING
    rig.submit(1)
    rig.watcher.wait(1)
    rows = rig.watcher.outcomes.popitem()[1]
    assert isinstance(rows, Encoded)
    assert rig.engine.staging_bytes() == RING + rows.rows.nbytes


# preprocess and forward


class Narrow:
    """An encoder with room for so many images in one step."""

    def __init__(self, inner: Encoder) -> None:
        self.card, self.plan, self.warm_up = inner.card, inner.plan, inner.warm_up
        self.inner = inner
        self.prepared, self.run = 99, 99

    def preprocess(self, raws: list[Tensor], plans: list[object]) -> Inputs:
        if len(raws) > self.prepared:
            raise torch.OutOfMemoryError("no")
        return self.inner.preprocess(raws, plans)  # type: ignore[arg-type]

    def forward(self, inputs: Inputs) -> Tensor:
        if len(inputs.tensors["images"]) > self.run:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")
        return self.inner.forward(inputs)


@pytest.mark.parametrize("step", ["prepared", "run"])
@pytest.mark.parametrize(("room", "encoded"), [(3, 4), (1, 4), (0, 0)])
def test_a_batch_is_halved_down_to_items(
    step: str, room: int, encoded: int, eye: Encoder, tmp_path: Path, streams: TwinStreams
) -> None:
    narrow = Narrow(eye)
    rig = Rig(narrow, tmp_path, StreamDevice(streams, RING))  # type: ignore[arg-type]
    rig.hold_one_batch()
    slots = rig.submit(1, 2, 3, 4)
    wait_until(lambda: streams.log.count("in done") == 5)
    setattr(narrow, step, room)
    first = 1 if room or step == "prepared" else 0  # it is held between the two
    rig.runner.gate.set()
    rig.watcher.wait(5)
    assert sum(isinstance(one, Encoded) for one in rig.watcher.outcomes.values()) == encoded + first
    assert streams.freed_caches >= 1
    if not room:
        assert all("out of memory" in str(error_of(rig, slot)) for slot in slots)
    setattr(narrow, step, 99)
    lives_on(rig)
    rig.end()


# download


class NoRoom(StreamDevice):
    """Host memory for the rows of ``items`` images at once."""

    items = 99

    def download(self, rows: Tensor, ready: object) -> Tensor:
        if rows.shape[0] > self.items * 257:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate bytes")
        return super().download(rows, ready)  # type: ignore[arg-type]


@pytest.mark.parametrize(("room", "encoded"), [(3, 4), (1, 4), (0, 0)])
def test_rows_come_home_in_halves(
    room: int, encoded: int, eye: Encoder, tmp_path: Path, streams: TwinStreams
) -> None:
    device = NoRoom(streams, RING)
    rig = Rig(eye, tmp_path, device)
    first = rig.hold_one_batch()
    slots = rig.submit(10, 20, 30, 40)
    rig.runner.gate.set()
    rig.watcher.wait(5)
    whole = [rows_of(rig.watcher.outcomes.pop(slot.id)) for slot in slots]
    del rig.watcher.outcomes[first.id]
    rig.hold_one_batch()
    device.items = room
    slots = rig.submit(10, 20, 30, 40)
    rig.runner.gate.set()
    rig.watcher.wait(5)
    if encoded:
        assert all(map(torch.equal, whole, (rows_of(rig.watcher.outcomes[slot.id]) for slot in slots)))
    else:
        assert all("out of memory" in str(error_of(rig, slot)) for slot in slots)
    device.items = 99
    lives_on(rig)
    rig.end()
