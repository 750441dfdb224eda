"""The number of torch threads: set, shared out, or calibrated."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from epd.contracts.errors import EncodeFailed
from gpu_worker.encoders.base import Encoder
from gpu_worker.service import torch_threads as threads
from gpu_worker.service.torch_threads import (
    choose_threads,
    core_share,
    fastest,
    measured_seconds,
    set_torch_threads,
)
from tests.unit.encoders.tiny_checkpoints import tiny_encoder


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return tiny_encoder("dinov2", tmp_path_factory.mktemp("eye"))


def test_a_given_number_of_threads_is_used(eye: Encoder) -> None:
    assert choose_threads(3, {"eye": eye}) == 3
    assert torch.get_num_threads() == 3


def test_the_cores_are_divided() -> None:
    assert core_share(1) >= core_share(2) >= core_share(10_000) == 1
    assert set_torch_threads(0, 10_000) == 1


def test_one_half_and_all_are_measured_most_first() -> None:
    asked: list[int] = []

    def measure(count: int) -> float:
        asked.append(count)
        return 0.001

    assert set(measured_seconds(8, measure)) == {1, 4, 8}
    assert asked == [8, 4, 1]
    assert set(measured_seconds(2, measure)) == {1, 2}


def test_slow_measurements_are_skipped() -> None:
    assert set(measured_seconds(8, lambda _count: 1.0)) == {8, 4}
    assert set(measured_seconds(8, lambda _count: 60.0)) == {8}


def test_fewer_threads_are_chosen_only_where_they_are_clearly_faster() -> None:
    assert fastest({8: 1.0, 4: 0.95, 1: 0.95}) == 8
    assert fastest({8: 1.0, 4: 0.5, 1: 0.48}) == 4
    assert fastest({8: 1.0, 4: 0.5, 1: 0.2}) == 1
    assert fastest({2: 7.0}) == 2


def test_a_calibration_says_what_it_measured(
    eye: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "core_share", lambda _share: 2)
    with caplog.at_level(logging.INFO, logger="gpu_worker.service.torch_threads"):
        chosen = choose_threads(0, {"eye": eye})
    assert chosen in {1, 2}
    seen: list[int] = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [chosen]
    assert f"with {chosen} threads" in caplog.text
    assert "1: " in caplog.text
    assert "2: " in caplog.text


def test_a_slow_encoder_is_tried_once(monkeypatch: pytest.MonkeyPatch, eye: Encoder) -> None:
    class Slow:
        card = eye.card
        tries = 0

        def warm_up(self) -> None:
            self.tries += 1
            time.sleep(0.06)

    monkeypatch.setattr(threads, "core_share", lambda _share: 2)
    monkeypatch.setattr(threads, "_TRY_SECONDS", 0.05)
    slow = Slow()
    choose_threads(0, {"eye": slow})  # type: ignore[dict-item]
    assert slow.tries == 3  # one that warms up, one for each number of threads


def test_an_encoder_that_does_not_run_is_reported(monkeypatch: pytest.MonkeyPatch, eye: Encoder) -> None:
    class Broken:
        card = eye.card

        def warm_up(self) -> None:
            raise ValueError("no such kernel")

    monkeypatch.setattr(threads, "core_share", lambda _share: 2)
    with pytest.raises(EncodeFailed, match="no such kernel"):
        choose_threads(0, {"eye": Broken()})  # type: ignore[dict-item]
