"""What ``epd status`` shows of GPU workers beside the other workers: graphs, staging, and what graphs do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from epd.cli.tables import mebibytes, plain_table
from epd.contracts.answers import StatusAnswer, WorkerAnswer
from epd.telemetry.counters import Count, counter_key, split_counter_key


def gpu_tables(answer: StatusAnswer) -> list[Table]:
    """Memory and graphs; nothing where no worker has a device with memory of its own."""
    workers = [one for one in answer.workers if one.graph_bytes is not None or one.staging_bytes]
    return [_memory(workers), _graphs(workers)] if workers else []


def _memory(workers: list[WorkerAnswer]) -> Table:
    table = plain_table("worker", "device", "of it graphs", "pinned host", title="memory of GPU workers")
    for one in workers:
        sizes = (one.memory_bytes, one.graph_bytes, one.staging_bytes)
        table.add_row(one.name, *(mebibytes(size) for size in sizes))
    return table


def _graphs(workers: list[WorkerAnswer]) -> Table:
    columns = ("worker", "encoder", "graphs", "replayed", "no graph fits", "eager was cheaper", "padding")
    table = plain_table(*columns, title="captured forwards")
    for one in workers:
        for encoder in _captured(one):
            table.add_row(one.name, encoder, *_cells(one, encoder))
    return table


def _captured(worker: WorkerAnswer) -> Iterator[str]:
    for key in sorted(worker.counters):
        name, encoder = split_counter_key(key)
        if name == Count.GRAPHS.value:
            yield encoder


def _cells(worker: WorkerAnswer, encoder: str) -> Iterator[str]:
    counts = (Count.GRAPHS, Count.GRAPH_HITS, Count.GRAPH_MISSES, Count.GRAPH_DECLINED)
    for count in counts:
        yield f"{worker.counters.get(counter_key(count, encoder), 0):.0f}"
    yield f"{worker.counters.get(counter_key(Count.GRAPH_PADDING_SHARE, encoder), 0):.1%}"
