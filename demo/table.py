"""The demo's table: one row an item, one more for a video's audio track. It fits into 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from epd.contracts import timings
from epd.contracts.answers import ItemAnswer, JobAnswer, PartAnswer

#: Columns of the table and the stage times that each adds up.
COLUMNS = {
    "fetch": (timings.FETCH,),
    "decode": (timings.DECODE,),
    "encode": (timings.STAGE, timings.PREPROCESS, timings.FORWARD),
    "store": (timings.WRITE,),
    "waits": (timings.FETCH_QUEUE, timings.DECODE_QUEUE, timings.ENCODE_QUEUE),
}


def job_table(job: JobAnswer, *, title: str) -> Table:
    """The job as a table; times are milliseconds."""
    caption = "times in milliseconds; waits: in all three queues"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.title_justify = table.caption_justify = "left"
    for name in ("item", "type"):
        table.add_column(name, no_wrap=True)
    for name in ("tokens", "shape", "cached", *COLUMNS):
        table.add_column(name, justify="right")
    for name, part in _rows(job):
        table.add_row(name, str(part.type), *_result_cells(part), *_time_cells(part))
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


def _rows(job: JobAnswer) -> Iterator[tuple[str, PartAnswer]]:
    for item in job.items:
        yield item_name(item), item
        for track in item.tracks:
            yield f"  {track.type} track", track


def _result_cells(part: PartAnswer) -> tuple[str, str, str]:
    if part.embedding is None:
        return "-", str(part.error.code if part.error else part.state), "-"
    tokens, hidden = part.embedding.shape
    return str(tokens), f"{tokens}x{hidden}", "yes" if part.cached else "no"


def _time_cells(part: PartAnswer) -> Iterator[str]:
    for stages in COLUMNS.values():
        known = [part.timings[stage] for stage in stages if stage in part.timings]
        yield f"{sum(known) * 1e3:.0f}" if known else "-"
