"""``epd status`` and ``epd models``: what the server says of itself."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from epd.cli.cache import cache_lines
from epd.cli.fitting import print_whole, whole_console
from epd.cli.gpu_tables import gpu_tables
from epd.cli.server import UrlOption, connect
from epd.cli.tables import byte_size, mebibytes, plain_table
from epd.contracts.answers import EncoderAnswer, ModelsAnswer, StatusAnswer

JsonOption = Annotated[bool, typer.Option("--json", help="The server's own answer.")]
#: Columns that a narrow terminal goes without, the first one first.
_SPARE = ("graphs", "hidden", "parameters", "dtype", "family", "types", "memory", "device")


def status(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show workers, queue depths and the size of the embedding cache."""
    with connect(url, timeout=10) as client:
        answer = client.status()
    if as_json:
        print(answer.model_dump_json(indent=2))
        return
    console = whole_console()
    console.print(_workers(answer), "")
    for table in gpu_tables(answer):
        console.print(table, "")
    console.print(_queues(answer), "")
    for line in cache_lines(answer):
        console.print(line, highlight=False)
    console.print(f"blobs: {byte_size(answer.blob_bytes)} of {byte_size(answer.blob_limit)}")


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


def models(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show the server's models and encoders."""
    with connect(url, timeout=10) as client:
        answer = client.models()
    if as_json:
        print(answer.model_dump_json(indent=2))
        return
    console = whole_console()
    console.print(_models(answer), "")
    print_whole(console, _encoders(answer), spare=_SPARE, title="encoders")


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
