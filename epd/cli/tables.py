"""Tables and sizes as the command prints them: plain, within the terminal's width, never truncated."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epd.contracts import timings
from epd.contracts.responses import PartAnswer

#: Time columns of an item's table, each with the stage times that it adds up.
TIME_COLUMNS = {
    "fetch": (timings.FETCH,),
    "decode": (timings.DECODE,),
    "encode": (timings.STAGE, timings.PREPROCESS, timings.FORWARD),
    "store": (timings.WRITE,),
    "waits": (timings.FETCH_QUEUE, timings.DECODE_QUEUE, timings.ENCODE_QUEUE),
}
#: The width for a pipe or a file, which has none.
_UNBOUNDED = 10_000
#: Cells between two columns. More would not fit: a key and an encoder's name fill 80 columns.
_GAP = 1


def wide_console() -> Console:
    """Standard output, as wide as its terminal, or unbounded when it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=_UNBOUNDED)


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A table with one line under its head. A cell that is too wide continues on the next line."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def print_columns(
    console: Console,
    columns: Mapping[str, Sequence[str]],
    *,
    droppable: Sequence[str],
    title: str | None = None,
) -> None:
    """Print columns of plain text as a table with one line per row.

    Columns in ``droppable`` are dropped in that order until the rest fits, and are named below the table. If
    the rest still does not fit, the terminal wraps its lines.
    """
    dropped = _dropped(console.width, columns, droppable)
    shown = [name for name in columns if name not in dropped]
    table = plain_table(title=title)
    table.padding = 0
    for name in shown:
        table.add_column(name, no_wrap=True)
    for cells in zip(*(columns[name] for name in shown), strict=True):
        table.add_row(*map(escape, cells))
    width = console.width
    console.width = max(width, _width(columns, shown))
    console.print(table)
    console.width = width
    if dropped:
        console.print(f"left out for lack of width: {', '.join(dropped)}; --json shows all", highlight=False)


def _dropped(width: int, columns: Mapping[str, Sequence[str]], droppable: Sequence[str]) -> list[str]:
    for count in range(len(droppable)):
        if _width(columns, [name for name in columns if name not in droppable[:count]]) <= width:
            return [*droppable[:count]]
    return [*droppable]


def _width(columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    widest = (max(map(cell_len, (name, *columns[name]))) for name in names)
    return sum(widest) + _GAP * (len(names) - 1)


def parts_table(*, title: str | None = None) -> Table:
    """An empty table of items and tracks. Only the first column may wrap; it fits into 80 columns."""
    table = plain_table("item", title=title)
    table.padding = 0  # ten columns leave no room for wider gaps
    table.caption = "times in milliseconds; waits: in all three queues"
    table.add_column("type", no_wrap=True)
    for name in ("tokens", "shape", "cached", *TIME_COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def add_part(table: Table, name: str, part: PartAnswer, *, type_: str | None = None) -> None:
    """Add a row to a ``parts_table``. Names come from users, so markup in them is escaped."""
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


def mebibytes(nbytes: int | None) -> str:
    """A size in MiB for people to read, or a dash where it is unknown."""
    return "-" if nbytes is None else f"{nbytes / (1 << 20):.1f} MiB"


def byte_size(nbytes: int) -> str:
    """A size for people to read, in the largest unit that fits: ``512 B``, ``1.5 KiB``, ``4.0 GiB``."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit}"
    return f"{nbytes} B"
