"""The GPU benchmark without a GPU: sizes, counted operations, time limits, and its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from bench.gpu.building import Place
from bench.gpu.forwards import measure_tower
from bench.gpu.preprocessing import measure_preprocessing
from bench.gpu.report import Course, as_text
from bench.gpu.target import CpuMeter, Target, self_test_target
from bench.gpu.towers import TINY_TOWERS, TOWERS
from bench.gpu.twin_graphs import TwinBackend, TwinCapture
from gpu_worker.engine.device import DeviceLost
from gpu_worker.engine.graphs.cuda_graph import Call

ON_CPU = Place(torch.device("cpu"), torch.float32)

#: Parameters of the published encoders; dinov2-small without its mask token of 384.
PUBLISHED = {
    "whisper-tiny": 8_208_384,
    "dinov2-small": 22_056_576 - 384,
    "qwen2.5-vl-3b": 668_684_288,
    "qwen2.5-vl-7b": 676_550_144,
    "qwen3-vl-4b": 415_347_712,
    "qwen3-vl-8b": 576_388_336,
}


def test_towers_have_the_published_sizes() -> None:
    hollow = Place(torch.device("meta"), torch.bfloat16)
    counted = {tower.name: tower.build(hollow).card.parameters for tower in TOWERS}
    assert counted == PUBLISHED


def test_operations_are_those_of_products_and_attention() -> None:
    tower = next(one for one in TINY_TOWERS if one.name == "dinov2")
    inputs = tower.items(tower.build(ON_CPU), 3)
    width, hidden, rows, patches = 32, 64, 257, 256
    products = 4 * width * width + 2 * width * hidden
    embedding = patches * 3 * 14 * 14 * width
    assert tower.operations(inputs) == 3 * 2 * (rows * products + embedding + 2 * rows * rows * width)


def test_attention_is_counted_inside_its_segments_alone() -> None:
    tower = next(one for one in TINY_TOWERS if one.name == "qwen2.5-vl")
    encoder = tower.build(ON_CPU)
    one, four = (tower.operations(tower.items(encoder, count)) for count in (1, 4))
    assert four == 4 * one


def test_random_encoders_give_finite_rows_of_their_plans() -> None:
    for tower in TINY_TOWERS:
        encoder = tower.build(ON_CPU)
        rows = encoder.forward(tower.items(encoder, 2))
        assert torch.isfinite(rows).all(), tower.name
        assert rows.shape[1] == encoder.card.hidden
        assert rows.std() > 0


def test_a_tower_is_measured_at_every_count() -> None:
    tower = next(one for one in TINY_TOWERS if one.name == "qwen2.5-vl")
    figures = measure_tower(tower, self_test_target(), 1.0, (1, 3))
    assert [one.items for one in figures.batches] == [1, 3]
    assert [one.units for one in figures.batches] == [64, 192]
    for one in figures.batches:
        assert one.largest_difference <= 1e-5
        assert one.speed_up == pytest.approx(one.eager_ms / one.replay_ms)
        assert one.share_of_limit == pytest.approx(one.tflops)
    assert figures.memory.weights >= 4 * figures.parameters
    assert figures.memory.graphs > 0


class WrongBackend(TwinBackend):
    """Captures of more than one item come out as NaN; those of three fail."""

    def capture(self, call: Call) -> TwinCapture:
        rows = call().shape[0]
        if rows == 3 * 257:
            raise RuntimeError("no room")
        return super().capture(call if rows == 257 else lambda: call() * float("nan"))


def test_a_wrong_or_missing_capture_is_seen() -> None:
    tower, good = next(one for one in TINY_TOWERS if one.name == "dinov2"), self_test_target()
    target = Target(
        device=good.device, name="", dtype=good.dtype, make_backend=WrongBackend, meter=good.meter,
        self_test=True,
    )  # fmt: skip
    figures = measure_tower(tower, target, None, (1, 2, 3))
    assert figures.batches[0].largest_difference == 0
    assert figures.batches[1].largest_difference != figures.batches[1].largest_difference
    assert [one.items for one in figures.batches] == [1, 2]
    assert figures.missing == {"3": "RuntimeError: no room"}
    assert figures.batches[0].share_of_limit == 0


def test_preprocessing_is_the_same_here_and_there() -> None:
    figures = measure_preprocessing("qwen2_5_vl", "tiny", self_test_target())
    assert figures.equal_share == 1
    assert figures.pillow_resize_ms > 0


def test_the_clock_takes_a_median_of_a_bounded_number_of_rounds() -> None:
    calls: list[int] = []
    assert CpuMeter(enough=0.01).seconds(lambda: calls.append(1)) >= 0
    assert len(calls) == 2 + 30


@dataclass(frozen=True)
class Figure:
    value: int


class Hand:
    """A clock that is turned by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def failing(error: Exception) -> Figure:
    raise error


def test_no_case_is_begun_after_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Hand()
    course = Course(10.0, clock)
    assert course.run("one", lambda: Figure(1)) == [Figure(1)]
    clock.now = 10.0
    assert course.run("two", lambda: Figure(2)) == []
    assert course.left_out == ["two"]
    printed = capsys.readouterr().err
    assert '{"value": 1}' in printed
    assert "two" not in printed


def test_a_case_that_fails_does_not_end_the_others_but_a_lost_device_does() -> None:
    course = Course(10.0, Hand())
    assert course.run("bad", lambda: failing(ValueError("odd"))) == []
    assert course.run("good", lambda: Figure(1)) == [Figure(1)]
    course.run("lost", lambda: failing(DeviceLost("gone")))
    assert course.run("after", lambda: Figure(2)) == []
    assert course.failed == {"bad": "ValueError: odd", "lost": "DeviceLost: gone"}
    assert course.left_out == ["after"]


def test_a_run_without_figures_is_reported_in_words() -> None:
    document: dict[str, Any] = {
        "device_name": "thing", "torch": "2", "seconds": 1.0, "limit": None, "self_test": False,
        "left_out": ["overlap a"], "failed": {"limit": "RuntimeError: no"},
    }  # fmt: skip
    text = as_text(document)
    assert text.startswith("thing, torch 2, 1 s.")
    assert "Left out for want of time: overlap a" in text
    assert "Failed: limit: RuntimeError: no" in text


def test_a_wrong_capture_is_shown_in_the_table() -> None:
    batch = {"items": 1, "eager_ms": 2.0, "replay_ms": 1.0, "speed_up": 2.0, "items_per_s": 1000.0,
             "tflops": 5.0, "share_of_limit": 0.5, "largest_difference": float("nan")}  # fmt: skip
    memory = {"weights": 3 << 20, "graphs": 1 << 20, "eager_peak": None}
    document: dict[str, Any] = {
        "device_name": "thing", "torch": "2", "seconds": 1.0, "limit": None, "self_test": False,
        "towers": [{"tower": "eye", "parameters": 2e6, "memory": memory, "batches": [batch]}],
        "left_out": [], "failed": {},
    }  # fmt: skip
    text = as_text(document)
    assert "| eye | 1 | 2.00 | 1.00 | 2.00 | 1000 | 5.0 | 50% | nan |" in text
    assert "| eye | 2 M | 3.0 | 1.0 | - |" in text
