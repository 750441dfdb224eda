"""``epd encode``: encodes files and URLs, shows the results and saves the embeddings."""

from __future__ import annotations

import glob
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from epd.cli.server import UrlOption, connect
from epd.cli.tables import add_part, parts_table
from epd.client import Client
from epd.client.payloads import is_url
from epd.contracts.errors import CallerFault, InvalidRequest
from epd.contracts.job import FINAL_STATES, ErrorInfo, Priority, State
from epd.contracts.media import Modality
from epd.contracts.responses import ItemAnswer, JobAnswer, PartAnswer

_ITEMS_A_JOB = 8
_JOBS_AT_ONCE = 4
_POLL_PERIOD = 0.1

_ERRORS_SHOWN = 20
_NAME_SHOWN = 60


def encode(  # noqa: PLR0917  typer reads the signature
    sources: Annotated[
        list[str],
        typer.Argument(help="Files, quoted globs or URLs; '-' reads them from standard input, one per line."),
    ],
    url: UrlOption = None,
    type_: Annotated[
        Modality | None,
        typer.Option("--type", help="The media type of all sources whose names do not show it."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model of the server; default: the server's own.")
    ] = None,
    priority: Annotated[Priority, typer.Option(help="Bulk work waits for interactive work.")] = (
        Priority.INTERACTIVE
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, in order.")] = False,
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


def expand(sources: Iterable[str], stdin: Iterable[str]) -> Iterator[str]:
    """The names on the command line, with globs expanded and '-' replaced by the lines of standard input."""
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
    except OSError:  # such as a name that is too long; the client reports why
        return True


def _matches(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise InvalidRequest(f"no such file, and no file matches: {pattern}")
    return [name for name in found if Path(name).is_file()]


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _show(done: list[tuple[str, ItemAnswer]], out: Path | None) -> None:
    console = Console()
    console.print(item_table(done))
    if out is not None:
        console.print(f"embeddings and metadata are in {out}/", markup=False, highlight=False)
    for line in error_lines(done):
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)


class RefusedItem(ItemAnswer):
    """An item that was refused before it became part of a job. Its ``type`` has no meaning."""


@dataclass(slots=True)
class _Running:
    names: list[str]
    job: JobAnswer

    def final_items(self) -> int:
        return sum(item.state in FINAL_STATES for item in self.job.items)


def encode_all(
    client: Client,
    names: list[str],
    *,
    type_: Modality | None,
    model: str | None,
    priority: Priority,
    on_done: Callable[[int], None],
) -> Iterator[tuple[str, ItemAnswer]]:
    """Encode paths and URLs; yields (name, answer) in order.

    ``on_done`` gets the number of items that are final so far. The wait is bounded: each job ends at its
    deadline, or is ``NotFound`` some time later.
    """
    waiting = iter(names)
    running: deque[_Running] = deque()
    finished = 0
    while True:
        while len(running) < _JOBS_AT_ONCE and (group := list(islice(waiting, _ITEMS_A_JOB))):
            running.append(_submit(client, group, type_, model, priority))
        if not running:
            return
        on_done(finished + sum(each.final_items() for each in running))
        first = running[0]
        if first.job.state not in FINAL_STATES:
            time.sleep(_POLL_PERIOD)
            _refresh(client, running)
            continue
        running.popleft()
        finished += len(first.names)
        yield from zip(first.names, first.job.items, strict=True)


def _refresh(client: Client, running: deque[_Running]) -> None:
    for each in running:
        if each.job.state not in FINAL_STATES:
            each.job = client.job(each.job.job_id)


def _submit(
    client: Client, group: list[str], type_: Modality | None, model: str | None, priority: Priority
) -> _Running:
    try:
        return _Running(group, client.submit(group, type=type_, model=model, priority=priority))
    except CallerFault as error:
        if len(group) == 1:
            return _Running(group, _refused(error))
        # One bad name refuses the whole request, so try them one at a time.
        singles = [_submit(client, [name], type_, model, priority) for name in group]
        return _Running(group, _joined(client, singles))


def _joined(client: Client, singles: list[_Running]) -> JobAnswer:
    """Wait for jobs of one item each, and join them into one final job."""
    for each in singles:
        if each.job.state not in FINAL_STATES:
            each.job = client.wait(each.job.job_id)
    items = [each.job.items[0].model_copy(update={"index": i}) for i, each in enumerate(singles)]
    return singles[0].job.model_copy(update={"items": tuple(items), "state": State.PARTIAL})


def _refused(error: CallerFault) -> JobAnswer:
    item = RefusedItem(index=0, type=Modality.IMAGE, state=State.FAILED, error=ErrorInfo.of(error))
    return JobAnswer(job_id="", model="", state=State.FAILED, items=(item,))


def item_line(name: str, item: ItemAnswer) -> str:
    """One JSON line: the source's name and the item's answer."""
    unknown = {"type"} if isinstance(item, RefusedItem) else None
    return json.dumps({"source": name, **item.model_dump(mode="json", exclude_none=True, exclude=unknown)})


def item_table(done: Iterable[tuple[str, ItemAnswer]]) -> Table:
    """A table with a row for each item and each track."""
    table = parts_table()
    for name, item in done:
        add_part(table, _short(name), item, type_="-" if isinstance(item, RefusedItem) else None)
        for track in item.tracks:
            add_part(table, f"  {track.type} track", track)
    return table


def error_lines(done: Iterable[tuple[str, ItemAnswer]]) -> Iterator[str]:
    """One line for each part that failed, up to a limit, since a whole long list may fail."""
    errors = [line for name, item in done for line in _errors(name, item)]
    yield from errors[:_ERRORS_SHOWN]
    if len(errors) > _ERRORS_SHOWN:
        yield f"... and {len(errors) - _ERRORS_SHOWN} more errors; --json shows all"


def _errors(name: str, item: ItemAnswer) -> Iterator[str]:
    for part in (item, *item.tracks):
        if part.error is not None:
            whose = _short(name) if part is item else f"{_short(name)} {part.type} track"
            yield f"{whose}: {part.error.code}: {part.error.message}"


def _short(name: str) -> str:
    return name if len(name) <= _NAME_SHOWN else f"…{name[1 - _NAME_SHOWN :]}"


def save_item(client: Client, folder: Path, number: int, name: str, item: ItemAnswer) -> None:
    """Write the embeddings and metadata of an item and its tracks."""
    _save_part(client, folder / f"{number:04d}-{_stem(name)}", item)
    for track in item.tracks:
        _save_part(client, folder / f"{number:04d}-{_stem(name)}.{track.type}", track)


def _save_part(client: Client, base: Path, part: PartAnswer) -> None:
    if part.embedding is None or part.metadata is None:
        return
    base.with_name(base.name + ".safetensors").write_bytes(
        client.embedding(part.embedding.key, form="safetensors")
    )
    text = part.metadata.model_dump_json(exclude_none=True, indent=2)
    base.with_name(base.name + ".json").write_text(text + "\n", encoding="utf-8")


def _stem(name: str) -> str:
    if name[:5].lower() == "data:":
        return "data"
    path = urlsplit(name).path if is_url(name) else name
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in Path(path).stem)[:80] or "item"
