"""The demo's table: one row an item, one more for a video's audio track. It fits into 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from epd.cli.tables import add_part, parts_table
from epd.contracts.answers import ItemAnswer, JobAnswer, PartAnswer


def job_table(job: JobAnswer, *, title: str) -> Table:
    """The job as a table; times are milliseconds."""
    table = parts_table(title=title)
    for item in job.items:
        add_part(table, item_name(item), item)
        for track in item.tracks:
            add_part(table, f"  {track.type} track", track)
    return table


def named_parts(job: JobAnswer) -> Iterator[tuple[str, PartAnswer]]:
    """Every part with its name: the item's own, or its id and the track."""
    for item in job.items:
        yield item_name(item), item
        for track in item.tracks:
            yield f"{item_name(item)} {track.type} track", track


def item_name(item: ItemAnswer) -> str:
    """The caller's id, else the item's place."""
    return item.id or f"#{item.index}"
