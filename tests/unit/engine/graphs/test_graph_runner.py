"""Captured forwards of items of one size, on the CPU twin: the rows are always the eager ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.gpu.twin_graphs import TwinBackend, TwinCapture
from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Capturable, Encoder, GraphForm, Inputs
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.device import CpuDevice
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.forward import EagerRunner
from gpu_worker.engine.graphs.buckets import Bucket, StaticBuffers
from gpu_worker.engine.graphs.cuda_graph import Call, is_capture_refusal
from gpu_worker.engine.graphs.graph_set import CaptureBounds
from gpu_worker.engine.graphs.runner import GraphRunner
from gpu_worker.engine.slot import Encoded, Outcome
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.engine_watcher import Watcher
from tests.unit.engine.graphs.graph_kit import (
    EvenBackend,
    Formless,
    audios_of,
    graph_plan,
    image,
    images_of,
    poisoned,
    warm_runner,
)
from tests.unit.engine.slot_makers import make_slot

SIZE = (30, 40)


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder("dinov2", tmp_path_factory.mktemp("eye"))


def batch(eye: Encoder, count: int, seed: int = 0) -> Inputs:
    return images_of(eye, [SIZE] * count, seed)


def test_every_count_gives_the_eager_rows(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(items=8))
    for count in (1, 8, 1, 5, 8, 3, 2, 7, 1):
        inputs = batch(eye, count, seed=count)
        torch.testing.assert_close(runner.run(eye, inputs), eye.forward(inputs), rtol=1e-5, atol=1e-5)
    figures = runner.figures("tiny-dinov2")
    assert (figures.hits, figures.misses, figures.padding) == (9, 0, 0)


@pytest.mark.parametrize("family", ["whisper", "clip", "siglip"])
def test_other_families_of_one_size(family: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(family, tmp_path)
    runner = warm_runner(encoder, graph_plan(items=3))
    inputs = audios_of(encoder, [31, 2]) if family == "whisper" else images_of(encoder, [SIZE] * 3)
    torch.testing.assert_close(runner.run(encoder, inputs), encoder.forward(inputs), rtol=1e-5, atol=1e-5)
    assert runner.figures(encoder.card.name).hits == 1


def test_sizes_between_two_buckets_are_padded(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(items=12))
    runner.run(eye, poisoned(batch(eye, 12), "images"))
    inputs = batch(eye, 9)  # replayed in the bucket of 10, whose last place held NaN
    rows = runner.run(eye, inputs)
    torch.testing.assert_close(rows, eye.forward(inputs), rtol=1e-5, atol=1e-5)
    figures = runner.figures("tiny-dinov2")
    assert (figures.hits, figures.units, figures.padding) == (2, 21, 1)
    assert figures.padding_share == pytest.approx(1 / 22)


def test_padding_is_zero_whatever_was_there(eye: Encoder) -> None:
    assert isinstance(eye, Capturable)
    bucket = Bucket(4)
    buffers = StaticBuffers(eye.graph_form, eye.sample(), bucket)
    (images,) = buffers.view(bucket).values()
    images.fill_(float("nan"))
    inputs = batch(eye, 3)
    buffers.fill(bucket, inputs)
    assert torch.equal(images[:3], inputs.tensors["images"])
    assert not images[3].any()


def test_later_runs_do_not_write_to_earlier_rows(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(items=4))
    first = runner.run(eye, batch(eye, 2, seed=1))
    kept = first.clone()
    for count in (2, 4, 1):
        runner.run(eye, batch(eye, count, seed=9))
    assert torch.equal(first, kept)


def test_an_items_rows_are_bit_equal_whatever_its_neighbours_are(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(items=4))
    per_item = runner.run(eye, batch(eye, 1)).shape[0]
    alone = [runner.run(eye, images_of(eye, [SIZE, *others]))[:per_item] for others in (
        [SIZE] * 3, [(200, 90)] * 3, [(7, 9), (300, 300), (64, 64)],
    )]  # fmt: skip
    assert all(torch.equal(alone[0], other) for other in alone[1:])


def test_more_than_the_largest_bucket_is_run_eagerly(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(items=2))
    inputs = batch(eye, 3)
    assert torch.equal(runner.run(eye, inputs), eye.forward(inputs))
    assert runner.figures("tiny-dinov2").misses == 1


class FailingBackend(EvenBackend):
    """Captures of results with so many rows fail."""

    def __init__(self, rows: int, error: Exception) -> None:
        super().__init__()
        self.rows, self.error, self.tries = rows, error, 0

    def capture(self, call: Call) -> TwinCapture:
        self.tries += 1
        if call().shape[0] == self.rows:
            raise self.error
        return super().capture(call)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no"),
        torch.OutOfMemoryError("no"),
        torch.AcceleratorError("operation not permitted when stream is capturing", 900),
    ],
)
def test_a_failed_capture_is_remembered_and_served_by_others(eye: Encoder, error: Exception) -> None:
    per_item = eye.forward(batch(eye, 1)).shape[0]
    backend = FailingBackend(3 * per_item, error)
    runner = warm_runner(eye, graph_plan(items=3), backend)
    assert backend.tries == 3
    for count in (3, 2, 3):
        inputs = batch(eye, count)
        torch.testing.assert_close(runner.run(eye, inputs), eye.forward(inputs), rtol=1e-5, atol=1e-5)
    assert backend.tries == 3
    figures = runner.figures("tiny-dinov2")
    assert (figures.hits, figures.misses) == (1, 2)


def test_a_lost_device_ends_the_warm_up(eye: Encoder) -> None:
    per_item = eye.forward(batch(eye, 1)).shape[0]
    lost = torch.AcceleratorError("illegal memory access", 700)
    assert not is_capture_refusal(lost)
    with pytest.raises(torch.AcceleratorError):
        warm_runner(eye, graph_plan(items=2), FailingBackend(2 * per_item, lost))


def test_captures_end_at_the_measured_memory(eye: Encoder) -> None:
    bytes_per_item = eye.forward(batch(eye, 1)).nbytes
    bounds = CaptureBounds(memory=2 * bytes_per_item, graphs=9)
    backend = EvenBackend()
    runner = warm_runner(eye, graph_plan(items=4, bounds=bounds), backend)
    assert backend.memory() == 2 * bytes_per_item
    for count in (4, 3, 2, 1):
        runner.run(eye, batch(eye, count))
    figures = runner.figures("tiny-dinov2")
    assert (figures.hits, figures.misses) == (2, 2)
    assert (figures.graphs, figures.memory) == (2, 2 * bytes_per_item)


def test_captures_end_at_their_count(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(items=6, bounds=CaptureBounds(memory=1 << 30, graphs=1)))
    runner.run(eye, batch(eye, 1))
    figures = runner.figures("tiny-dinov2")
    assert (figures.hits, figures.padding) == (1, 5)


def test_what_was_required_and_not_captured_ends_the_start(eye: Encoder) -> None:
    warm_runner(eye, graph_plan(items=2, required=True))
    bounds = CaptureBounds(memory=1, graphs=9)
    with pytest.raises(SettingsError, match=r"tiny-dinov2.*2 units: \d+ bytes are more than 1; 1 units"):
        warm_runner(eye, graph_plan(items=2, bounds=bounds, required=True))
    with pytest.raises(SettingsError, match=r"tiny-dinov2.*all: this encoder has no form"):
        warm_runner(Formless(eye), graph_plan(required=True))
    with pytest.raises(SettingsError, match="may not even have the 1 units"):
        warm_runner(eye, graph_plan(items=0, required=True))


class HalvesOnly(EvenBackend):
    """Takes packed rows in half precision alone, as CUDA does."""

    def takes(self, form: GraphForm, dtype: torch.dtype) -> bool:
        return not form.segments or dtype != torch.float32


def test_packed_rows_in_float32_are_named_when_required(tmp_path: Path) -> None:
    ear = tiny_encoder("qwen2_audio", tmp_path)
    with pytest.raises(SettingsError, match="packed rows in float32 cannot be captured here"):
        warm_runner(ear, graph_plan(required=True), HalvesOnly())


def test_an_encoder_without_a_form_is_run_eagerly(eye: Encoder) -> None:
    plain = Formless(eye)
    runner = warm_runner(plain, graph_plan())
    inputs = batch(eye, 2)
    assert torch.equal(runner.run(plain, inputs), eye.forward(inputs))
    assert runner.all_figures()["tiny-dinov2"].misses == 1


class SlowReplays(TwinBackend):
    """Replays take long, eager runs none."""

    def seconds(self, call: Call) -> float:
        return 1.0 if "replay" in getattr(call, "__name__", "") else 0.0


def test_replays_that_do_not_pay_are_declined(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(items=2), SlowReplays())
    inputs = batch(eye, 2)
    assert torch.equal(runner.run(eye, inputs), eye.forward(inputs))
    figures = runner.figures("tiny-dinov2")
    assert (figures.hits, figures.declined) == (0, 1)


def test_an_engine_with_captured_forwards_gives_what_an_eager_one_gives(eye: Encoder, tmp_path: Path) -> None:
    slots = []
    for index in range(9):
        path = tmp_path / f"blob-{index}"
        path.write_bytes(image(30, 40, index).numpy().tobytes())
        slots.append(make_slot(path=path, slot_id=f"{index}", height=30, width=40))
    runner = GraphRunner(EvenBackend(), graph_plan(items=4, required=True))
    results = []
    for own in (runner, EagerRunner()):
        watcher = Watcher()
        engine = Engine(
            {"eye": eye}, budget=Budget(max_items=4, max_cost=10_000), device=CpuDevice(),
            observer=watcher, runner=own,
        )  # fmt: skip
        engine.start(30)
        for slot in slots:
            engine.submit(slot)
        watcher.wait(len(slots))
        engine.stop(20)
        results.append({name: as_rows(outcome) for name, outcome in watcher.outcomes.items()})
    for name, rows in results[0].items():
        torch.testing.assert_close(rows, results[1][name], rtol=1e-5, atol=1e-5)
    figures = runner.figures("tiny-dinov2")
    assert figures.units == 9
    assert figures.misses == 0


def as_rows(outcome: Outcome) -> torch.Tensor:
    assert isinstance(outcome, Encoded), outcome
    return torch.frombuffer(bytearray(outcome.rows), dtype=torch.float32)
