"""How the command draws tables: plain, within the terminal's width, and nothing cut off."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.markup import escape
from rich.table import Table

from epd.contracts import timings
from epd.contracts.answers import PartAnswer

#: Columns of an item's table and the stage times that each adds up.
TIME_COLUMNS = {
    "fetch": (timings.FETCH,),
    "decode": (timings.DECODE,),
    "encode": (timings.STAGE, timings.PREPROCESS, timings.FORWARD),
    "store": (timings.WRITE,),
    "waits": (timings.FETCH_QUEUE, timings.DECODE_QUEUE, timings.ENCODE_QUEUE),
}


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A table with one line under its head; a text that is too wide goes on in the next line."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def mebibytes(nbytes: int | None) -> str:
    """A size for people; a dash where it is not known."""
    return "-" if nbytes is None else f"{nbytes / (1 << 20):.1f} MiB"


def byte_size(nbytes: int) -> str:
    """A size for people, in the largest unit that it fills: ``512 B``, ``1.5 KiB``, ``4.0 GiB``."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit}"
    return f"{nbytes} B"


def parts_table(*, title: str | None = None) -> Table:
    """The head of a table of items and tracks; only the first column may wrap. Fits into 80 columns."""
    table = plain_table("item", title=title)
    table.padding = 0  # ten columns leave no room for wide gaps
    table.caption = "times in milliseconds; waits: in all three queues"
    table.add_column("type", no_wrap=True)
    for name in ("tokens", "shape", "cached", *TIME_COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def add_part(table: Table, name: str, part: PartAnswer, *, type_: str | None = None) -> None:
    """A row of ``parts_table``. Names are anyone's, so nothing in them is markup."""
    table.add_row(escape(name), type_ or str(part.type), *_result_cells(part), *_time_cells(part))


def _result_cells(part: PartAnswer) -> tuple[str, str, str]:
    if part.embedding is None:
        return "-", str(part.state), "-"
    tokens, hidden = part.embedding.shape
    return str(tokens), f"{tokens}x{hidden}", "yes" if part.cached else "no"


def _time_cells(part: PartAnswer) -> Iterator[str]:
    for stages in TIME_COLUMNS.values():
        known = [part.timings[stage] for stage in stages if stage in part.timings]
        yield f"{sum(known) * 1e3:.0f}" if known else "-"
