"""``epd encode``: media in, embeddings out."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from epd.cli.jobs import encode_all
from epd.cli.output import error_lines, item_line, item_table, save_item
from epd.cli.server import UrlOption, connect
from epd.client.items import is_url
from epd.contracts.answers import ItemAnswer
from epd.contracts.errors import InvalidRequest
from epd.contracts.job import Priority, State
from epd.contracts.media import Modality


def encode(  # noqa: PLR0917  typer reads the signature
    sources: Annotated[
        list[str],
        typer.Argument(help="Files, quoted globs or URLs; '-' reads one a line from standard input."),
    ],
    url: UrlOption = None,
    type_: Annotated[
        Modality | None, typer.Option("--type", help="Of all the sources, where their names do not tell.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model of the server; default: its own.")] = None,
    priority: Annotated[Priority, typer.Option(help="Bulk work waits for interactive work.")] = (
        Priority.INTERACTIVE
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, in order.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for <number>-<name>.safetensors and .json (metadata) of each item."),
    ] = None,
) -> None:
    """Encode media and show tokens, shapes and times. Exit code 1 when an item failed."""
    names = list(expand(sources, sys.stdin))
    if not names:
        raise InvalidRequest("nothing to encode")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    done: list[tuple[str, ItemAnswer]] = []
    with connect(url) as client, _progress() as progress:
        task = progress.add_task("encoding", total=len(names))
        for name, item in encode_all(
            client,
            names,
            type_=type_,
            model=model,
            priority=priority,
            on_done=lambda count: progress.update(task, completed=count),
        ):
            done.append((name, item))
            if out is not None:
                save_item(client, out, len(done) - 1, name, item)
            if as_json:
                print(item_line(name, item), flush=True)
    if not as_json:
        _show(done, out)
    if any(item.state is not State.DONE for _, item in done):
        raise typer.Exit(1)


def _show(done: list[tuple[str, ItemAnswer]], out: Path | None) -> None:
    console = Console()
    console.print(item_table(done))
    if out is not None:
        console.print(f"embeddings and metadata are in {out}/", markup=False, highlight=False)
    for line in error_lines(done):
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)


def expand(sources: Iterable[str], stdin: Iterable[str]) -> Iterator[str]:
    """Names from the command line: globs are opened, '-' is replaced by the lines of standard input."""
    for source in sources:
        if source == "-":
            yield from (line.strip() for line in stdin if line.strip())
        elif is_url(source) or _is_there(source):
            yield source
        else:
            yield from _matches(source)


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # too long for a file's name, say; the server's client tells why
        return True


def _matches(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise InvalidRequest(f"no such file, and no file matches: {pattern}")
    return [name for name in found if Path(name).is_file()]


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)
