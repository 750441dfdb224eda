"""How the command draws tables: plain, within the terminal's width, and nothing cut off."""

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


#: A pipe and a file have no width, so nothing has to fit into them.
_UNBOUNDED = 10_000
#: Cells between two columns: the divider, which is a space. A key and an encoder's name fill 80 columns.
_GAP = 1


def whole_console() -> Console:
    """Standard output: as wide as its terminal, and of any width where it is none."""
    return Console() if sys.stdout.isatty() else Console(width=_UNBOUNDED)


def print_whole(
    console: Console, columns: Mapping[str, Sequence[str]], *, spare: Sequence[str], title: str | None = None
) -> None:
    """Print columns of plain text as a table of one line a row.

    Those in ``spare`` are left out from its first on until the rest fits, and are named then. What does not
    fit even so is left to the terminal, which breaks the line without cutting it.
    """
    left_out = _left_out(console.width, columns, spare)
    shown = [name for name in columns if name not in left_out]
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
    if left_out:
        console.print(
            f"left out, for want of width: {', '.join(left_out)}; --json tells all", highlight=False
        )


def _left_out(width: int, columns: Mapping[str, Sequence[str]], spare: Sequence[str]) -> list[str]:
    for count in range(len(spare)):
        if _width(columns, [name for name in columns if name not in spare[:count]]) <= width:
            return [*spare[:count]]
    return [*spare]


def _width(columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    widest = (max(map(cell_len, (name, *columns[name]))) for name in names)
    return sum(widest) + _GAP * (len(names) - 1)
