"""The engine over streams that run at the same time: what overlaps, and what is not touched at that time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from bench.gpu.twin_streams import TwinMark, TwinStreams
from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.engine.cuda_streams import CudaMark
from gpu_worker.engine.forward import EagerRunner
from gpu_worker.engine.graphs.graph_set import GraphSet
from gpu_worker.engine.graphs.runner import GraphRunner
from gpu_worker.engine.slot import Slot
from gpu_worker.engine.stream_device import StreamDevice
from tests.paths import ROOT
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.engine_rig import Rig, rows_of, wait_until
from tests.unit.engine.graphs.graph_kit import EvenBackend, graph_plan

#: Room for a batch of the rig's images (3600 bytes each), not for two.
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
    streams.inward.gate.set()
    streams.outward.gate.set()
    rig.end()


def eager_rows(eye: Encoder, slot: Slot) -> Tensor:
    data = torch.frombuffer(bytearray(slot.path.read_bytes()), dtype=torch.uint8).view(30, 40, 3)
    return eye.forward(eye.preprocess([data], [eye.plan(slot.raw, slot.options)]))


def check_rows(rig: Rig, eye: Encoder, slots: list[Slot]) -> None:
    for slot in slots:
        rows = rows_of(rig.watcher.outcomes[slot.id])
        torch.testing.assert_close(rows, eager_rows(eye, slot), rtol=1e-5, atol=1e-5)


def test_the_next_batch_is_uploaded_and_the_last_one_written_while_one_runs(
    rig: Rig, eye: Encoder, streams: TwinStreams
) -> None:
    streams.outward.gate.clear()
    first = rig.submit(1)  # batch N-1: computed, and held on its way out
    wait_until(lambda: "out queued" in streams.log)
    second = rig.hold_one_batch()  # batch N: held in its forward
    before = len(streams.log)
    third = rig.submit(10, 20, 30)  # batch N+1
    wait_until(lambda: streams.log.count("in done") == 5)
    # Uploaded, while N computes and N-1 is not out: between "compute begins" of N and any end of it.
    assert set(streams.log[before:]) == {"in queued", "in done"}
    assert streams.log.count("compute begins") == 2
    assert "out done" not in streams.log
    assert rig.watcher.outcomes == {}
    streams.outward.gate.set()
    rig.watcher.wait(1)  # N-1 is written while N still computes
    assert streams.log.count("compute begins") == 2
    rig.runner.gate.set()
    rig.watcher.wait(5)
    assert rig.runner.sizes == [1, 1, 3]
    check_rows(rig, eye, [*first, second, *third])


def test_a_staged_batch_is_filled_up_until_the_device_takes_it(
    rig: Rig, eye: Encoder, streams: TwinStreams
) -> None:
    rig.hold_one_batch()
    slots = []
    for count, value in enumerate((10, 20, 30, 40), start=2):
        slots += rig.submit(value)
        wait_until(lambda count=count: streams.log.count("in done") == count)
    slots += rig.submit(50)
    assert rig.engine.queued == 1  # the batch of four is full
    rig.runner.gate.set()
    rig.watcher.wait(6)
    assert rig.runner.sizes == [1, 4, 1]
    assert [len(batch) for batch in rig.watcher.begun] == [1, 1, 1, 1, 1, 1]
    check_rows(rig, eye, slots)


def test_compute_waits_for_its_own_uploads(rig: Rig, eye: Encoder, streams: TwinStreams) -> None:
    streams.inward.gate.clear()
    slots = rig.submit(7)
    wait_until(lambda: "in queued" in streams.log)
    assert not rig.runner.entered.wait(0.1)  # what is on the device is garbage still
    streams.inward.gate.set()
    rig.watcher.wait(1)
    check_rows(rig, eye, slots)


def test_what_was_staged_and_not_run_is_given_back(rig: Rig, streams: TwinStreams) -> None:
    first = rig.hold_one_batch()
    slots = rig.submit(1, 2, 3, 4, 5, 6)
    wait_until(lambda: rig.engine.queued == 2)
    threading.Timer(0.1, rig.runner.gate.set).start()
    left = rig.engine.stop(20)
    assert set(rig.watcher.outcomes) == {first.id}
    assert {slot.id for slot in left} == {slot.id for slot in slots}


def replays() -> GraphRunner:
    return GraphRunner(EvenBackend(), graph_plan(items=4, required=True))


def stream_rows(eye: Encoder, folder: Path, streams: TwinStreams) -> tuple[Rig, list[Slot]]:
    """Batches replayed on the twin, whose rows leave only after all of them were computed."""
    rig = Rig(eye, folder, StreamDevice(streams, RING), replays())
    streams.outward.gate.clear()
    slots = []
    for count, value in enumerate((10, 200, 90), start=1):
        slots += rig.submit(value)
        wait_until(lambda count=count: streams.log.count("compute begins") == count)
    streams.outward.gate.set()
    rig.watcher.wait(3)
    rig.end()
    return rig, slots


def test_rows_are_not_written_over_before_they_are_out(
    eye: Encoder, tmp_path: Path, streams: TwinStreams
) -> None:
    rig, slots = stream_rows(eye, tmp_path, streams)
    check_rows(rig, eye, slots)


def test_the_twin_sees_rows_that_are_written_over(eye: Encoder, tmp_path: Path, streams: TwinStreams) -> None:
    """Without the copy in ``GraphSet.run`` a later replay writes to the pool before the rows are out."""
    run = GraphSet.run

    def uncopied(self: GraphSet, bucket: object, inputs: Inputs) -> Tensor:
        with patch.object(Tensor, "clone", lambda tensor: tensor):
            return run(self, bucket, inputs)  # type: ignore[arg-type]

    with patch.object(GraphSet, "run", uncopied):
        rig, slots = stream_rows(eye, tmp_path, streams)
    with pytest.raises(AssertionError):
        check_rows(rig, eye, slots)


WAITS = [
    (torch.Tensor, "item"),
    (torch.Tensor, "tolist"),
    (torch.Tensor, "cpu"),
    (torch.Tensor, "__bool__"),
    (torch.Tensor, "__int__"),
    (torch.Tensor, "__float__"),
    (torch.cuda, "synchronize"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
    (TwinMark, "wait"),
]


@pytest.mark.parametrize("captured", [False, True])
def test_nothing_on_the_path_waits_for_the_device_but_the_completion_thread(
    captured: bool, eye: Encoder, tmp_path: Path, streams: TwinStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by thread. The twin's compute stream is the device thread, so a wait there is its own."""
    rig = Rig(eye, tmp_path, StreamDevice(streams, RING), replays() if captured else EagerRunner())
    calls: list[tuple[str, str]] = []
    for owner, name in WAITS:
        count_calls(owner, name, calls, monkeypatch)
    slots = rig.submit(*range(1, 14))
    rig.watcher.wait(len(slots))
    rig.end()
    monkeypatch.undo()
    assert {thread for thread, name in calls if name != "wait"} <= {"MainThread"}
    assert {thread for thread, name in calls if name == "wait"} <= {"engine-reply", "engine-device"}
    batches = streams.log.count("compute begins")
    assert sum(call == ("engine-reply", "wait") for call in calls) == batches
    check_rows(rig, eye, slots)


def count_calls(
    owner: object, name: str, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(owner, name)

    def counted(*arguments: object, **fields: object) -> object:
        calls.append((threading.current_thread().name, name))
        return real(*arguments, **fields)

    monkeypatch.setattr(owner, name, counted)


def test_only_the_mark_knows_how_to_wait() -> None:
    """In the engine and the preprocessing nothing else calls what blocks on the device."""
    root = ROOT / "gpu_worker"
    found = [
        path.relative_to(root).as_posix()
        for folder in ("engine", "encoders", "preprocess")
        for path in sorted((root / folder).rglob("*.py"))
        if any(word in path.read_text("utf-8") for word in (".synchronize(", ".item(", ".cpu(", ".nonzero("))
    ]
    # The second times captures at warm-up, before anything is served.
    assert found == ["engine/cuda_streams.py", "engine/graphs/cuda_graph.py"]
    assert CudaMark.wait.__doc__ is not None
