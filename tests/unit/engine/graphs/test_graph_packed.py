"""Captured forwards of packed patches, on the CPU twin: whatever the segments were at the capture."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from bench.gpu.twin_graphs import TwinBackend
from gpu_worker.encoders.attention import Segments
from gpu_worker.encoders.base import Capturable, Encoder, GraphForm, Inputs, SegmentRule
from gpu_worker.encoders.qwen import parts as qwen_parts
from gpu_worker.engine.graphs.buckets import StaticBuffers, fits, load_of, make_bucket
from tests.quick import quick
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.graphs.graph_kit import EvenBackend, graph_plan, images_of, poisoned, warm_runner

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]

#: Batches of one bucket with other segments, small after large after small, and full of edges.
BATCHES = [
    [(112, 112)],
    [(300, 420), (200, 90)],
    [(112, 112)],
    [(112, 224), (224, 112)],
    [(224, 224)],
    [(56, 56), (84, 140), (140, 84)],
    [(448, 448)],
    [(140, 308)],
]


@pytest.fixture(scope="module", params=quick(FAMILIES, "qwen2_5_vl"))
def eye(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder(request.param, tmp_path_factory.mktemp("eye"))


def close(rows: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)


def test_small_large_small_gives_the_eager_rows(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(rows=2048))
    for sizes in BATCHES:
        inputs = images_of(eye, sizes)
        close(runner.run(eye, inputs), eye.forward(inputs))
    figures = runner.figures(eye.card.name)
    assert figures.hits + figures.misses == len(BATCHES)
    assert figures.hits >= len(BATCHES) - 1
    assert figures.padding > 0


def test_poison_of_an_earlier_batch_is_not_in_the_padding(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(rows=2048))
    spoilt = runner.run(eye, poisoned(images_of(eye, [(420, 420)]), "patches"))
    assert not torch.isfinite(spoilt).any()
    inputs = images_of(eye, [(112, 112)])
    close(runner.run(eye, inputs), eye.forward(inputs))


def test_an_items_rows_are_bit_equal_whatever_its_neighbours_are(eye: Encoder) -> None:
    runner = warm_runner(eye, graph_plan(rows=2048))
    first = (168, 168)
    own = eye.forward(images_of(eye, [first])).shape[0]
    results = [
        runner.run(eye, images_of(eye, [first, *others]))[:own]
        for others in ([(280, 280)], [(140, 280), (280, 140)], [(280, 224)])
    ]
    assert all(torch.equal(results[0], other) for other in results[1:])


class OffsetsOnly(EvenBackend):
    """Tells a forward no more of its segments than CUDA does: the longest that its capture allows."""

    def lengths(self, offsets: Tensor, longest: int) -> tuple[int, ...]:
        return (longest,)


def attend_by_offsets(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """What a variable-length kernel computes: it reads the offsets, and no row past the longest."""
    longest = max(segments.lengths)
    mixed = torch.full_like(query, float("nan"))
    for start, end in pairwise(segments.offsets.tolist()):
        own = slice(start, min(end, start + longest))
        if end > start:
            q, k, v = (rows[own].transpose(0, 1) for rows in (query, key, value))
            mixed[own] = F.scaled_dot_product_attention(q, k, v).transpose(0, 1)
    return mixed.flatten(1)


def test_the_offsets_on_the_device_are_all_that_a_replay_needs(
    eye: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [images_of(eye, sizes) for sizes in BATCHES]
    expected = [eye.forward(inputs) for inputs in batches]
    monkeypatch.setattr(qwen_parts, "attend", attend_by_offsets)
    runner = warm_runner(eye, graph_plan(rows=2048), OffsetsOnly())
    for inputs, rows in zip(batches, expected, strict=True):
        close(runner.run(eye, inputs), rows)
    assert runner.figures(eye.card.name).hits >= len(BATCHES) - 1


def test_every_bucket_edge(eye: Encoder) -> None:
    """A batch of exactly a bucket's rows has no padding; one patch cell more takes the next bucket."""
    runner = warm_runner(eye, graph_plan(rows=1024))
    patch = 16 if eye.card.family == "qwen3_vl" else 14
    for cells in (8, 9, 16):
        inputs = images_of(eye, [(8 * 2 * patch, cells * 2 * patch)])
        close(runner.run(eye, inputs), eye.forward(inputs))


def test_the_twin_refuses_a_segment_that_is_longer_than_its_capture() -> None:
    backend = TwinBackend()
    offsets = torch.tensor([0, 4, 9, 9, 9], dtype=torch.int32)
    assert backend.lengths(offsets, 5) == (4, 5)
    with pytest.raises(ValueError, match="at most 4"):
        backend.lengths(offsets, 4)


def test_padding_is_cut_into_segments_of_its_own(tmp_path: Path) -> None:
    eye = tiny_encoder("qwen2_5_vl", tmp_path)
    assert isinstance(eye, Capturable)
    bucket = make_bucket(eye.graph_form, 512)
    buffers = StaticBuffers(eye.graph_form, eye.sample(), bucket)
    view = buffers.view(bucket)
    for tensor in view.values():
        tensor.fill_(77)
    inputs = images_of(eye, [(112, 112)])
    units = inputs.tensors["patches"].shape[0]
    buffers.fill(bucket, inputs)
    frames = TwinBackend().lengths(view["frame_offsets"], 512)
    # The padding is cut to the typical length: in one piece its rows would cost more than real ones.
    assert frames == (units, 256, 512 - units - 256)
    windows = TwinBackend().lengths(view["window_offsets"], 64)
    assert windows[: len(inputs.layout["windows"])] == inputs.layout["windows"]
    assert sum(windows) == 512
    assert sorted(view["restore"].tolist()) == list(range(128))
    assert not view["patches"][units:].any()


@settings(max_examples=200, deadline=None)
@given(data=st.data(), units=st.integers(64, 4096))
def test_padding_fits_into_the_free_segments_whatever_the_batch_is(data: st.DataObject, units: int) -> None:
    rule = SegmentRule(lengths="l", longest=data.draw(st.sampled_from([None, 64, 300])), typical=50)
    form = GraphForm(units="rows", segments={"offsets": rule})
    bucket = make_bucket(form, units)
    lengths = data.draw(st.lists(st.integers(1, 64), min_size=1, max_size=40))
    inputs = Inputs(
        tensors={
            "rows": torch.ones(sum(lengths)),
            "offsets": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        },
        layout={"l": tuple(lengths)},
    )
    if not fits(load_of(form, inputs), bucket):
        return
    buffers = StaticBuffers(form, inputs, bucket)
    buffers.fill(bucket, inputs)
    found = TwinBackend().lengths(buffers.view(bucket)["offsets"], bucket.segments[0].longest)
    assert found[: len(lengths)] == tuple(lengths)
    assert sum(found) == units
