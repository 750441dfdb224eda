"""``epd status`` and ``epd models``: the server's own reports, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.table import Table

from epd.cli.cache import cache_lines
from epd.cli.server import UrlOption, connect
from epd.cli.tables import byte_size, mebibytes, plain_table, print_columns, wide_console
from epd.contracts.responses import EncoderAnswer, ModelsAnswer, StatusAnswer, WorkerAnswer
from epd.telemetry.counters import Count, counter_key, split_counter_key

JsonOption = Annotated[bool, typer.Option("--json", help="The answer of the server as JSON.")]
#: Columns of the encoders that are dropped in a narrow terminal, in this order.
_DROPPABLE = ("graphs", "hidden", "parameters", "dtype", "family", "types", "memory", "device")


def status(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show workers, queue depths and the size of the embedding cache."""
    with connect(url, timeout=10) as client:
        answer = client.status()
    if as_json:
        print(answer.model_dump_json(indent=2))
        return
    console = wide_console()
    console.print(_workers(answer), "")
    for table in gpu_tables(answer):
        console.print(table, "")
    console.print(_queues(answer), "")
    for line in cache_lines(answer):
        console.print(line, highlight=False)
    console.print(f"blobs: {byte_size(answer.blob_bytes)} of {byte_size(answer.blob_limit)}")


def models(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show the server's models and encoders."""
    with connect(url, timeout=10) as client:
        answer = client.models()
    if as_json:
        print(answer.model_dump_json(indent=2))
        return
    console = wide_console()
    console.print(_models(answer), "")
    print_columns(console, _encoders(answer), droppable=_DROPPABLE, title="encoders")


def _workers(answer: StatusAnswer) -> Table:
    table = plain_table("worker", "kind", "pid", "ready", "last beat", "memory", "encoders", title="workers")
    for worker in answer.workers:
        ready = "yes" if worker.ready else "no"
        encoders = ", ".join(worker.encoders)
        age, memory = f"{worker.age:.1f} s", mebibytes(worker.memory_bytes)
        table.add_row(worker.name, worker.kind, str(worker.pid), ready, age, memory, encoders)
    return table


def _queues(answer: StatusAnswer) -> Table:
    table = plain_table("queue", "waiting", "unacked", title="queues")
    for queue in answer.queues:
        table.add_row(queue.name, str(queue.waiting), str(queue.unacked))
    return table


def gpu_tables(answer: StatusAnswer) -> list[Table]:
    """Memory and graphs of the GPU workers; empty when no worker reports device memory of its own."""
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


def _models(answer: ModelsAnswer) -> Table:
    table = plain_table("model", "image", "video", "audio", title="models")
    for model in answer.models:
        name = f"{model.name} (default)" if model.default else model.name
        table.add_row(name, model.image or "-", model.video or "-", model.audio or "-")
    return table


def _encoders(answer: ModelsAnswer) -> dict[str, list[str]]:
    columns = (
        "encoder",
        "family",
        "ready",
        "types",
        "hidden",
        "dtype",
        "device",
        "parameters",
        "memory",
        "graphs",
    )
    rows = [_encoder(one) for one in answer.encoders]
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}


def _encoder(encoder: EncoderAnswer) -> tuple[str, ...]:
    known = (encoder.name, encoder.family, "yes" if encoder.ready else "no")
    if (card := encoder.card) is None:
        return *known, *("-",) * 7
    return (
        *known,
        ", ".join(card.modalities),
        str(card.hidden),
        card.dtype,
        card.device,
        f"{card.parameters / 1e6:.1f} M",
        mebibytes(encoder.memory_bytes),
        "-" if encoder.graphs is None else f"{encoder.graphs}, {mebibytes(encoder.graph_bytes)}",
    )
