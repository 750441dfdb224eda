"""How items are shown and saved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rich.table import Table

from epd.client import Client
from epd.client.items import is_url
from epd.contracts.answers import ItemAnswer, PartAnswer


def item_line(name: str, item: ItemAnswer) -> str:
    """One JSON line: the name that was asked for, and the item's answer."""
    return json.dumps({"source": name, **item.model_dump(mode="json", exclude_none=True)})


def item_table(done: Iterable[tuple[str, ItemAnswer]]) -> Table:
    """A row for each item, and one for each track."""
    table = Table("item", "type", "state", "tokens", "shape", "cached", "seconds", header_style="bold")
    for name, item in done:
        table.add_row(_short(name), *_cells(item))
        for track in item.tracks:
            table.add_row("  └ track", *_cells(track))
    return table


def _cells(part: PartAnswer) -> Iterator[str]:
    yield part.type
    yield part.error.code if part.error else part.state
    yield str(part.embedding.shape[0]) if part.embedding else "-"
    yield "x".join(map(str, part.embedding.shape)) if part.embedding else "-"
    yield "yes" if part.cached else "no"
    yield " ".join(f"{stage} {seconds:.3f}" for stage, seconds in part.timings.items())


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"…{name[-39:]}"


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
