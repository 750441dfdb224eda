"""The engine with a small real encoder on the CPU: batches, isolation of bad items, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from epd.contracts.errors import BlobMissing, EncodeFailed, EncoderNotReady
from epd.telemetry.counters import Count, counter_key
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.device import CpuDevice
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.forward import EagerRunner
from gpu_worker.engine.slot import Dropped, DropReason, Encoded, Failed
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.engine_rig import Rig, rows_of
from tests.unit.engine.engine_watcher import Watcher

#: An image whose first pixel is this makes ``poisoned`` fail.
POISON = 251


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder("dinov2", tmp_path_factory.mktemp("eye"))


@pytest.fixture
def rig(eye: Encoder, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(eye, tmp_path)
    yield rig
    rig.end()


def poisoned(images: Tensor) -> Exception | None:
    bright = images.flatten(1).max(dim=1).values
    return RuntimeError("bad picture") if bool((bright > 2.0).any()) else None


def test_queued_items_share_batches_and_equal_their_single_result(rig: Rig) -> None:
    first = rig.hold_one_batch()
    slots = [rig.slot(value) for value in (10, 20, 30, 40, 50, 60)]
    for slot in slots:
        assert rig.engine.submit(slot)
    rig.runner.gate.set()
    rig.watcher.wait(7)
    assert rig.runner.sizes == [1, 4, 2]
    alone = rig.slot(20)
    rig.engine.submit(alone)
    rig.watcher.wait(8)
    packed, single = rows_of(rig.watcher.outcomes[slots[1].id]), rows_of(rig.watcher.outcomes[alone.id])
    torch.testing.assert_close(packed, single, rtol=1e-5, atol=1e-5)
    assert [len(batch) for batch in rig.watcher.begun] == [1, 4, 2, 1]
    assert first.id in rig.watcher.outcomes
    figures = rig.engine.counters.snapshot()
    assert figures[counter_key(Count.ENCODE_ITEMS, "eye")] == 8
    assert figures[counter_key(Count.ENCODE_BATCH_PEAK, "eye")] == 4


def test_one_bad_item_fails_alone(rig: Rig) -> None:
    rig.runner.fails = poisoned
    rig.hold_one_batch()
    good = [rig.slot(value) for value in (10, 20, 30)]
    bad = rig.slot(POISON)
    for slot in (good[0], bad, good[1], good[2]):
        rig.engine.submit(slot)
    rig.runner.gate.set()
    rig.watcher.wait(5)
    outcome = rig.watcher.outcomes[bad.id]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, EncodeFailed)
    for slot in good:
        assert rows_of(rig.watcher.outcomes[slot.id]).isfinite().all()
    again = rig.slot(5)
    rig.engine.submit(again)
    rig.watcher.wait(6)
    assert isinstance(rig.watcher.outcomes[again.id], Encoded)


def test_a_batch_too_large_for_memory_is_halved_until_it_fits(rig: Rig) -> None:
    rig.runner.fails = lambda images: torch.OutOfMemoryError("no") if len(images) > 2 else None
    rig.hold_one_batch()
    slots = [rig.slot(value) for value in (10, 20, 30, 40)]
    for slot in slots:
        rig.engine.submit(slot)
    rig.runner.gate.set()
    rig.watcher.wait(5)
    assert rig.runner.sizes == [1, 4, 2, 2]
    assert all(isinstance(rig.watcher.outcomes[slot.id], Encoded) for slot in slots)


def test_missing_and_wrong_blobs_fail_alone(rig: Rig) -> None:
    rig.hold_one_batch()
    gone, short, good = rig.slot(1), rig.slot(2), rig.slot(3)
    gone.path.unlink()
    short.path.write_bytes(b"abc")
    for slot in (gone, short, good):
        rig.engine.submit(slot)
    rig.runner.gate.set()
    rig.watcher.wait(4)
    for slot in (gone, short):
        outcome = rig.watcher.outcomes[slot.id]
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BlobMissing)
    assert isinstance(rig.watcher.outcomes[good.id], Encoded)


def test_expired_cancelled_and_unwanted_slots_come_out_without_a_forward(rig: Rig) -> None:
    rig.hold_one_batch()
    expired, cancelled, unwanted = rig.slot(1, deadline=1.0), rig.slot(2), rig.slot(3)
    rig.watcher.unwanted.add(unwanted.id)
    for slot in (expired, cancelled, unwanted):
        rig.engine.submit(slot)
    assert rig.engine.cancel(cancelled.id)
    assert not rig.engine.cancel("unknown")
    rig.runner.gate.set()
    rig.watcher.wait(4)
    assert rig.watcher.outcomes[expired.id] == Dropped(DropReason.EXPIRED)
    assert rig.watcher.outcomes[cancelled.id] == Dropped(DropReason.CANCELLED)
    assert rig.watcher.outcomes[unwanted.id] == Dropped(DropReason.CANCELLED)
    assert rig.runner.sizes == [1]


def test_an_unknown_encoder_is_not_ready_here(rig: Rig) -> None:
    slot = rig.slot(1, encoder="nobody")
    rig.engine.submit(slot)
    rig.watcher.wait(1)
    outcome = rig.watcher.outcomes[slot.id]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, EncoderNotReady)


def test_slots_that_arrive_while_a_batch_runs_form_the_next_one(rig: Rig) -> None:
    rig.hold_one_batch()
    for value in (1, 2, 3, 4):
        rig.engine.submit(rig.slot(value))
    time.sleep(0.1)  # time in which they would be staged, were it wrong
    assert rig.engine.queued == 4
    rig.runner.gate.set()
    rig.watcher.wait(5)
    assert rig.runner.sizes == [1, 4]


def test_a_lone_slot_is_reported_on_the_device_thread_and_a_queue_on_the_completion_thread(rig: Rig) -> None:
    rig.submit(1)
    rig.watcher.wait(1)
    assert rig.watcher.threads == ["engine-device"]
    rig.hold_one_batch()
    rig.submit(2)
    rig.runner.gate.set()
    rig.watcher.wait(3)
    assert rig.watcher.threads[1] == "engine-reply"


def test_stop_finishes_the_running_batch_and_returns_the_rest(rig: Rig) -> None:
    first = rig.hold_one_batch()
    slots = [rig.slot(value) for value in range(6)]
    for slot in slots:
        rig.engine.submit(slot)
    threading.Timer(0.2, rig.runner.gate.set).start()
    left = rig.engine.stop(20)
    assert isinstance(rig.watcher.outcomes[first.id], Encoded)
    assert {slot.id for slot in left} == {slot.id for slot in slots}
    assert not rig.engine.submit(rig.slot(9))


def test_a_lost_device_is_reported_and_fails_nobody(rig: Rig) -> None:
    rig.runner.fails = lambda _images: torch.AcceleratorError("illegal memory access", 700)
    rig.engine.submit(rig.slot(1))
    end = time.monotonic() + 10
    while not rig.watcher.lost:
        assert time.monotonic() < end
        time.sleep(0.002)
    assert rig.watcher.outcomes == {}


def test_an_encoder_that_cannot_run_ends_the_start(eye: Encoder) -> None:
    class Broken(EagerRunner):
        def warm_up(self, encoder: Encoder) -> None:
            raise RuntimeError("no kernel image")

    engine = Engine(
        {"eye": eye}, budget=Budget(max_items=4, max_cost=100), device=CpuDevice(), observer=Watcher(),
        runner=Broken(),
    )  # fmt: skip
    with pytest.raises(EncodeFailed, match="no kernel image"):
        engine.start(20)
    engine.stop(5)
