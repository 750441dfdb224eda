"""Captured CUDA graphs give the eager rows: at bucket edges, on dirty buffers, in any order of batches."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch

from epd.config import EncoderConfig
from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.encoders.registry import load_encoder
from gpu_worker.engine.graphs.cuda_graph import CudaBackend
from gpu_worker.engine.graphs.graph_runner import GraphRunner
from tests.unit.graph_kit import graph_plan, picture, poisoned
from tests.unit.tiny_checkpoints import NO_OPTIONS, raw_image, tiny_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

FAMILIES = {"dinov2": "pictures", "qwen2_vl": "patches", "qwen2_5_vl": "patches", "qwen3_vl": "patches"}

#: Sides in pixels of square pictures, so that batches lie at, below and above the edges of buckets.
BATCHES = [[(224, 224)], [(112, 112)], [(448, 448)], [(224, 112), (112, 224)], [(56, 56)] * 3]


class EvenCudaBackend(CudaBackend):
    """Every call takes no time, so that a replay is always chosen."""

    def seconds(self, call: object) -> float:
        return 0.0


def make_encoder(family: str, folder: Path) -> Encoder:
    path = tiny_folder(family, folder)
    config = EncoderConfig(family=family, path=path, dtype="bfloat16", device="cuda:0")
    return load_encoder(f"tiny-{family}", config)


def batch(encoder: Encoder, sizes: list[tuple[int, int]]) -> Inputs:
    raws = [picture(*size, index).cuda() for index, size in enumerate(sizes)]
    return encoder.preprocess(raws, [encoder.plan(raw_image(*size), NO_OPTIONS) for size in sizes])


@pytest.mark.parametrize("family", FAMILIES)
def test_graph_rows_are_the_eager_rows_after_any_other_batch(family: str, tmp_path: Path) -> None:
    encoder = make_encoder(family, tmp_path)
    runner = GraphRunner(EvenCudaBackend(torch.device("cuda:0")), graph_plan(required=True))
    runner.warm_up(encoder)
    batches = [batch(encoder, sizes) for sizes in BATCHES]
    expected = [encoder.forward(inputs).clone() for inputs in batches]
    for before, after in permutations(range(len(batches)), 2):
        runner.run(encoder, poisoned(batches[before], FAMILIES[family]))
        rows = runner.run(encoder, batches[after])
        assert torch.isfinite(rows).all(), (before, after)
        similarity = torch.cosine_similarity(rows.float(), expected[after].float(), dim=-1)
        assert similarity.min() >= 0.999, (before, after)
    assert runner.figures(encoder.card.name).hits > 0
