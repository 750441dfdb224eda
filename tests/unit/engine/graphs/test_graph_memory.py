"""Out of memory at and after the capture of forwards: what was captured stays whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.gpu.twin_graphs import TwinCapture
from bench.gpu.twin_streams import TwinStreams
from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.graphs.cuda_graph import Call
from gpu_worker.engine.graphs.runner import GraphRunner
from gpu_worker.engine.slot import Encoded
from gpu_worker.engine.stream_device import StreamDevice
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.engine_rig import Rig, rows_of
from tests.unit.engine.graphs.graph_kit import EvenBackend, graph_plan, images_of

RING = 1 << 20
ROWS = 257


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder("dinov2", tmp_path_factory.mktemp("eye"))


@pytest.fixture
def streams() -> Iterator[TwinStreams]:
    streams = TwinStreams()
    yield streams
    streams.close()


class Pinched(EvenBackend):
    """No memory for captures of more rows than ``rows``."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def capture(self, call: Call) -> TwinCapture:
        if call().shape[0] > self.rows:
            raise torch.OutOfMemoryError("no room for a capture")
        return super().capture(call)


def test_captures_that_find_no_memory_leave_the_others_whole(
    eye: Encoder, tmp_path: Path, streams: TwinStreams
) -> None:
    runner = GraphRunner(Pinched(2 * ROWS), graph_plan(items=4))
    rig = Rig(eye, tmp_path, StreamDevice(streams, RING), runner)
    assert runner.figures(eye.card.name).graphs == 2
    rig.hold_one_batch()
    slots = rig.submit(1, 2, 3, 4)
    rig.runner.gate.set()
    rig.watcher.wait(5)
    assert all(isinstance(rig.watcher.outcomes[slot.id], Encoded) for slot in slots)
    figures = runner.figures(eye.card.name)
    assert (figures.hits, figures.misses) == (1, 1)
    rig.end()


def test_no_memory_for_the_inputs_of_graphs_is_no_end(eye: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> Tensor:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(Tensor, "new_zeros", refused)
    runner = GraphRunner(EvenBackend(), graph_plan(items=2))
    runner.warm_up(eye)
    monkeypatch.undo()
    inputs = images_of(eye, [(30, 40)])
    assert torch.equal(runner.run(eye, inputs), eye.forward(inputs))
    monkeypatch.setattr(Tensor, "new_zeros", refused)
    required = GraphRunner(EvenBackend(), graph_plan(items=2, required=True))
    with pytest.raises(SettingsError, match="no memory for the inputs of 2 units"):
        required.warm_up(eye)


class DearEager(EvenBackend):
    """Eager runs of the largest bucket find no memory next to the graphs."""

    def seconds(self, call: Call) -> float:
        if getattr(call, "__name__", "") == "forward" and call().shape[0] == 4 * ROWS:
            raise torch.OutOfMemoryError("no")
        return 0.0


def test_a_bucket_that_leaves_no_room_for_eager_runs_is_given_up(eye: Encoder) -> None:
    runner = GraphRunner(DearEager(), graph_plan(items=4))
    runner.warm_up(eye)
    assert runner.figures(eye.card.name).graphs == 3
    inputs = images_of(eye, [(30, 40)] * 3)
    torch.testing.assert_close(runner.run(eye, inputs), eye.forward(inputs), rtol=1e-5, atol=1e-5)
    assert runner.figures(eye.card.name).hits == 1


def test_a_replay_without_room_for_its_copy_is_halved_and_the_pool_stays(
    eye: Encoder, tmp_path: Path, streams: TwinStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = GraphRunner(EvenBackend(), graph_plan(items=4, required=True))
    rig = Rig(eye, tmp_path, StreamDevice(streams, RING), runner)
    rig.hold_one_batch()
    slots = rig.submit(10, 20, 30, 40)
    clone = Tensor.clone

    def narrow(self: Tensor) -> Tensor:
        if self.shape[0] > 2 * ROWS:
            raise torch.OutOfMemoryError("no")
        return clone(self)

    monkeypatch.setattr(Tensor, "clone", narrow)
    rig.runner.gate.set()
    rig.watcher.wait(5)
    monkeypatch.undo()
    assert all(isinstance(rig.watcher.outcomes[slot.id], Encoded) for slot in slots)
    assert rig.runner.sizes == [1, 4, 2, 2]
    again = rig.submit(20)
    rig.watcher.wait(6)
    pair = [rows_of(rig.watcher.outcomes[slot.id]) for slot in (slots[1], again[0])]
    torch.testing.assert_close(pair[0], pair[1], rtol=1e-5, atol=1e-5)
    rig.end()
