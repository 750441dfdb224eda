"""What a section of the benchmark gives: figures, bars that they should reach, and text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

#: Reports that a step of a section is done, by what comes next.
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and its bound: at least, or at most."""

    name: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the figure reaches the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        relation = "at least" if self.at_least else "at most"
        return f"{self.name} {self.value:g} ({relation} {self.bound:g}: {'met' if self.is_met else 'missed'})"


@dataclass(frozen=True, slots=True)
class Result:
    """Figures by their name in the JSON output; ``text`` is for a terminal and ends with a newline."""

    figures: Mapping[str, Any]
    text: str
    bars: tuple[Bar, ...] = field(default=())


@contextmanager
def progress_bar(title: str, steps: int) -> Iterator[Step]:
    """A bar on standard error for a section of so many steps; lines instead if that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=steps)

        def step(what: str) -> None:
            progress.update(task, advance=1, description=f"{title}: {what}")
            if progress.disable:
                console.print(f"{title}: {what}")

        yield step


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns, as text that ends with a newline."""
    cells = [[_cell(value) for value in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    match value:
        case Mapping():
            return ", ".join(f"{key} {one}" for key, one in value.items())
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
