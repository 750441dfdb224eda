"""``epd status`` shows graphs and staging where there are any, and nothing of them elsewhere."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from epd.cli.status import gpu_tables
from epd.contracts.responses import StatusAnswer, WorkerAnswer
from gpu_worker.engine.forward import GraphFigures
from gpu_worker.service.health import graph_counters

MIB = 1 << 20


def answer(*workers: WorkerAnswer) -> StatusAnswer:
    return StatusAnswer(
        workers=workers, queues=(), cache_entries=0, cache_bytes=0, cache_limit=1, blob_bytes=0, blob_limit=1
    )


def worker(**fields: object) -> WorkerAnswer:
    common = {"name": "gpu@h", "kind": "encode", "host": "h", "pid": 1, "ready": True, "age": 0.1}
    return WorkerAnswer.model_validate(common | fields)


def shown(status: StatusAnswer) -> list[list[str]]:
    out = StringIO()
    console = Console(file=out, width=120)
    for table in gpu_tables(status):
        console.print(table)
    return [line.split() for line in out.getvalue().splitlines()]


def test_a_worker_with_graphs() -> None:
    figures = GraphFigures(graphs=9, memory=40 * MIB, hits=7, misses=2, declined=1, units=30, padding=10)
    one = worker(
        memory_bytes=100 * MIB, graph_bytes=40 * MIB, staging_bytes=256 * MIB,
        counters=graph_counters({"eye": figures}),
    )  # fmt: skip
    lines = shown(answer(one, worker(name="fetch@h", kind="fetch")))
    assert ["gpu@h", "100.0", "MiB", "40.0", "MiB", "256.0", "MiB"] in lines
    assert ["gpu@h", "eye", "9", "7", "2", "1", "25.0%"] in lines


def test_a_worker_on_a_cpu_has_neither() -> None:
    assert gpu_tables(answer(worker(memory_bytes=MIB, staging_bytes=0))) == []
