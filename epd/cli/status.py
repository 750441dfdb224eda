"""``epd status`` and ``epd models``: what the server says of itself."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from epd.cli.cache import cache_lines
from epd.cli.gpu_tables import gpu_tables
from epd.cli.server import UrlOption, connect
from epd.cli.tables import mebibytes, plain_table
from epd.contracts.answers import ModelsAnswer, StatusAnswer

JsonOption = Annotated[bool, typer.Option("--json", help="The server's own answer.")]
_MIB = 1 << 20


def status(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show workers, queue depths and the size of the embedding cache."""
    with connect(url, timeout=10) as client:
        answer = client.status()
    if as_json:
        print(answer.model_dump_json(indent=2))
        return
    console = Console()
    console.print(_workers(answer), "")
    for table in gpu_tables(answer):
        console.print(table, "")
    console.print(_queues(answer), "")
    for line in cache_lines(answer):
        console.print(line, highlight=False)
    console.print(f"blobs: {_mib(answer.blob_bytes, answer.blob_limit)}")


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


def _mib(nbytes: int, limit: int) -> str:
    return f"{nbytes / _MIB:.1f} of {limit / _MIB:.0f} MiB"


def models(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show the server's models and encoders."""
    with connect(url, timeout=10) as client:
        answer = client.models()
    if as_json:
        print(answer.model_dump_json(indent=2))
        return
    console = Console()
    console.print(_models(answer), "")
    console.print(_encoders(answer))


def _models(answer: ModelsAnswer) -> Table:
    table = plain_table("model", "image", "video", "audio", title="models")
    for model in answer.models:
        name = f"{model.name} (default)" if model.default else model.name
        table.add_row(name, model.image or "-", model.video or "-", model.audio or "-")
    return table


def _encoders(answer: ModelsAnswer) -> Table:
    columns = ("encoder", "family", "ready", "types", "hidden", "dtype", "device", "parameters", "memory")
    table = plain_table(*columns, "graphs", title="encoders")
    for encoder in answer.encoders:
        ready = "yes" if encoder.ready else "no"
        if (card := encoder.card) is None:
            table.add_row(encoder.name, encoder.family, ready)
            continue
        facts = (
            ", ".join(card.modalities),
            str(card.hidden),
            card.dtype,
            card.device,
            f"{card.parameters / 1e6:.1f} M",
            mebibytes(encoder.memory_bytes),
            "-" if encoder.graphs is None else f"{encoder.graphs}, {mebibytes(encoder.graph_bytes)}",
        )
        table.add_row(encoder.name, encoder.family, ready, *facts)
    return table
