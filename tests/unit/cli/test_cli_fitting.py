"""Tables of one line a row: what is left out when there is no room, and that nothing is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from epd.cli.tables import byte_size, print_columns

KEYS = ["a" * 64, "b" * 64]
COLUMNS = {
    "key": KEYS,
    "encoder": ["eye", "[bold]ear"],
    "shape": ["257x384", "1500x384"],
    "used": ["2026-11-30", "2026-11-29"],
}


def shown(width: int) -> list[str]:
    out = io.StringIO()
    print_columns(Console(file=out, width=width), COLUMNS, droppable=["used", "shape"])
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (94, ["key", "encoder", "shape", "used"]),
        (93, ["key", "encoder", "shape"]),
        (82, ["key", "encoder"]),
        (20, ["key", "encoder"]),
    ],
)
def test_columns_are_left_out_and_no_key_is_cut(width: int, words: list[str]) -> None:
    head, _rule, first, second, *rest = shown(width)
    assert head.split() == words
    assert first.split()[:2] == [KEYS[0], "eye"]
    assert second.split()[:2] == [KEYS[1], "[bold]ear"]
    assert len(first.split()) == len(words)
    assert bool(rest) == (len(words) < len(COLUMNS))
    if width > 60:
        assert max(map(len, (head, first, second))) <= width


def test_what_is_left_out_is_named() -> None:
    assert " ".join(shown(82)[4:]) == "left out for lack of width: used, shape; --json shows all"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64.0 MiB"), (4 << 30, "4.0 GiB"),
     (3 << 40, "3.0 TiB")],
)  # fmt: skip
def test_a_size_stands_in_a_fitting_unit(nbytes: int, text: str) -> None:
    assert byte_size(nbytes) == text
