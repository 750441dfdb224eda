"""Memory is measured in the process that holds it and reported to the API."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from api.status import encoder_counter, graph_bytes, worker_counter
from epd.store.values import Heartbeat
from epd.telemetry.counters import Count
from gpu_worker.engine.forward import GraphFigures
from gpu_worker.service.health import encoder_bytes, graph_counters, memory_counters, worker_bytes
from tests.unit.encoders.tiny_checkpoints import tiny_encoder


def beat(name: str, **counters: float) -> Heartbeat:
    return Heartbeat(name=name, kind="encode", host="h", pid=1, at=0.0, counters=counters)


@pytest.mark.parametrize("family", ["dinov2", "whisper", "qwen2_5_vl"])
def test_weights_are_found_and_tables_are_small(family: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(family, tmp_path)
    weights = encoder.card.parameters * 4
    assert weights <= encoder_bytes(encoder) < weights + (8 << 20)


def test_a_second_encoder_is_not_counted(tmp_path: Path) -> None:
    first = tiny_encoder("dinov2", tmp_path)
    alone = encoder_bytes(first)
    _other = tiny_encoder("whisper", tmp_path)
    assert encoder_bytes(first) == alone


def test_shared_memory_counts_once_and_bfloat16_is_half(tmp_path: Path) -> None:
    class Pair:
        def __init__(self) -> None:
            self.base = torch.zeros(1000)
            self.view = self.base[10:]

    assert encoder_bytes(Pair()) == 4000  # type: ignore[arg-type]
    full, half = tiny_encoder("dinov2", tmp_path), tiny_encoder("dinov2", tmp_path / "half", "bfloat16")
    assert encoder_bytes(half) * 2 == pytest.approx(encoder_bytes(full), rel=0.05)


def test_the_worker_reports_its_own_memory() -> None:
    counters = memory_counters({"eye": 7}, "cpu", 9)
    assert counters["encoder_memory_bytes/eye"] == 7
    assert counters["staging_memory_bytes"] == 9
    assert counters["worker_memory_bytes"] == pytest.approx(worker_bytes("cpu"), rel=0.2)


def test_the_api_reads_it_from_live_workers() -> None:
    beats = [
        beat("a", **{"encoder_memory_bytes/eye": 5.0, "worker_memory_bytes": 9.0}),
        beat("b", **{"encoder_memory_bytes/eye": 6.0}),
    ]
    assert encoder_counter(beats, Count.ENCODER_MEMORY, "eye") == 6
    assert encoder_counter(beats, Count.ENCODER_MEMORY, "ear") is None
    assert [worker_counter(one, Count.WORKER_MEMORY) for one in beats] == [9, None]


def test_graphs_of_all_encoders_add_up() -> None:
    figures = {"eye": GraphFigures(graphs=3, memory=100, hits=4, units=9, padding=3), "ear": GraphFigures()}
    worker = beat("a", **graph_counters(figures))
    assert encoder_counter([worker, beat("b")], Count.GRAPHS, "eye") == 3
    assert encoder_counter([worker], Count.GRAPH_MEMORY, "ear") == 0
    assert graph_bytes(worker) == 100
    assert graph_bytes(beat("b")) is None
    assert worker.counters["graph_padding_share/eye"] == 0.25
    assert worker.counters["graph_hits/ear"] == 0
