"""How items are shown and saved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rich.table import Table

from epd.cli.jobs import RefusedItem
from epd.cli.tables import add_part, parts_table
from epd.client import Client
from epd.client.items import is_url
from epd.contracts.answers import ItemAnswer, PartAnswer

_ERRORS_SHOWN = 20
_NAME_SHOWN = 60


def item_line(name: str, item: ItemAnswer) -> str:
    """One JSON line: the name that was asked for, and the item's answer."""
    unknown = {"type"} if isinstance(item, RefusedItem) else None
    return json.dumps({"source": name, **item.model_dump(mode="json", exclude_none=True, exclude=unknown)})


def item_table(done: Iterable[tuple[str, ItemAnswer]]) -> Table:
    """A row for each item, and one for each track."""
    table = parts_table()
    for name, item in done:
        add_part(table, _short(name), item, type_="-" if isinstance(item, RefusedItem) else None)
        for track in item.tracks:
            add_part(table, f"  {track.type} track", track)
    return table


def error_lines(done: Iterable[tuple[str, ItemAnswer]]) -> Iterator[str]:
    """What went wrong, a line for each part that failed; bounded, for all of a long list may be bad."""
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
