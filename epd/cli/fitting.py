"""Tables whose cells are whole: a line for each row, and fewer columns where a terminal is too narrow."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape

from epd.cli.tables import plain_table

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
