"""Captured forwards of packed speech, on the CPU twin: windows, their valid rows, and pairs of these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.gpu.twin_graphs import TwinBackend
from gpu_worker.encoders.base import Capturable, Encoder
from gpu_worker.engine.graphs.buckets import StaticBuffers, make_bucket
from tests.quick import quick
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.graphs.graph_kit import audios_of, graph_plan, poisoned, warm_runner

#: Seconds of the audio clips of each batch; odd rows, one window, several, and small after large.
BATCHES = [[0.5], [31.0, 2.0], [0.5], [4.01, 0.05, 7.77], [9.99], [2.03, 2.05], [0.05], [35.0]]


@pytest.fixture(scope="module", params=quick(["qwen2_audio", "qwen2_5_omni_audio"], "qwen2_5_omni_audio"))
def ear(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder(request.param, tmp_path_factory.mktemp("ear"))


def close(rows: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)


def test_small_large_small_gives_the_eager_rows(ear: Encoder) -> None:
    runner = warm_runner(ear, graph_plan(rows=2048, required=True))
    for seconds in BATCHES:
        inputs = audios_of(ear, seconds)
        close(runner.run(ear, inputs), ear.forward(inputs))
    figures = runner.figures(ear.card.name)
    assert (figures.hits, figures.misses) == (len(BATCHES), 0)
    assert figures.padding > 0


def test_every_bucket_edge(ear: Encoder) -> None:
    runner = warm_runner(ear, graph_plan(rows=256))
    for rows in (127, 128, 129, 191, 192, 193, 256):
        inputs = audios_of(ear, [rows * 0.02])
        assert inputs.tensors["keep"].shape[0] == rows
        close(runner.run(ear, inputs), ear.forward(inputs))
    assert runner.figures(ear.card.name).misses == 0


def test_poison_of_an_earlier_batch_is_not_in_the_padding(ear: Encoder) -> None:
    runner = warm_runner(ear, graph_plan(rows=1024))
    spoilt = runner.run(ear, poisoned(audios_of(ear, [12.0]), "mel"))
    assert not torch.isfinite(spoilt).all()
    inputs = audios_of(ear, [0.5])
    close(runner.run(ear, inputs), ear.forward(inputs))


def test_an_items_rows_are_bit_equal_whatever_its_neighbours_are(ear: Encoder) -> None:
    runner = warm_runner(ear, graph_plan(rows=1024))
    own = ear.forward(audios_of(ear, [3.0])).shape[0]
    results = [
        runner.run(ear, audios_of(ear, [3.0, *others]))[:own] for others in ([8.5], [2.0, 6.5], [4.2, 4.3])
    ]
    assert {one.shape[0] for one in results} == {own}
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_an_audio_of_an_odd_number_of_rows_gives_the_rows_of_its_pairs(ear: Encoder) -> None:
    runner = warm_runner(ear, graph_plan(rows=512))
    inputs = audios_of(ear, [0.5, 0.7, 1.1])  # 25, 35 and 55 rows
    rows = runner.run(ear, inputs)
    assert rows.shape[0] == 12 + 17 + 27
    close(rows, ear.forward(inputs))


def test_more_windows_than_a_bucket_has_room_for_take_a_larger_one(ear: Encoder) -> None:
    runner = warm_runner(ear, graph_plan(rows=1024))
    inputs = audios_of(ear, [0.05] * 9)
    close(runner.run(ear, inputs), ear.forward(inputs))
    figures = runner.figures(ear.card.name)
    assert figures.hits + figures.misses == 1


def test_padding_is_silence_without_valid_frames(tmp_path: Path) -> None:
    ear = tiny_encoder("qwen2_5_omni_audio", tmp_path)
    assert isinstance(ear, Capturable)
    bucket = make_bucket(ear.graph_form, 512)
    buffers = StaticBuffers(ear.graph_form, ear.sample(), bucket)
    view = buffers.view(bucket)
    for tensor in view.values():
        tensor.fill_(77)
    inputs = audios_of(ear, [4.5])  # three chunks, the last with 25 rows
    buffers.fill(bucket, inputs)
    assert inputs.tensors["mel"].shape[0] == 3
    assert not view["mel"][3:].any()
    assert not view["frames"][3:].any()
    assert not view["keep"][225:].any()
    assert view["pairs"].tolist()[:224] == list(range(224))
    assert TwinBackend().lengths(view["offsets"], 100) == (100, 100, 25, 100, 100, 87)
