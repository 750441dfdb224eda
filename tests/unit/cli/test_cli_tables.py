"""Tables that fit the terminal without cutting a key, and the tables of GPU workers in ``epd status``."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from epd.cli.status import gpu_tables
from epd.cli.tables import byte_size, print_columns
from epd.contracts.responses import StatusAnswer, WorkerAnswer
from gpu_worker.engine.forward import GraphFigures
from gpu_worker.service.health import graph_counters

MIB = 1 << 20
KEYS = ["a" * 64, "b" * 64]
COLUMNS = {
    "key": KEYS,
    "encoder": ["eye", "[bold]ear"],
    "shape": ["257x384", "1500x384"],
    "used": ["2026-11-30", "2026-11-29"],
}


def shown(width: int) -> list[str]:
    out = StringIO()
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


def answer(*workers: WorkerAnswer) -> StatusAnswer:
    return StatusAnswer(
        workers=workers, queues=(), cache_entries=0, cache_bytes=0, cache_limit=1, blob_bytes=0, blob_limit=1
    )


def worker(**fields: object) -> WorkerAnswer:
    common = {"name": "gpu@h", "kind": "encode", "host": "h", "pid": 1, "ready": True, "age": 0.1}
    return WorkerAnswer.model_validate(common | fields)


def gpu_lines(status: StatusAnswer) -> list[list[str]]:
    out = StringIO()
    console = Console(file=out, width=120)
    for table in gpu_tables(status):
        console.print(table)
    return [line.split() for line in out.getvalue().splitlines()]


def test_a_worker_with_graphs() -> None:
    figures = GraphFigures(graphs=9, memory=40 * MIB, hits=7, misses=2, declined=1, units=30, padding=10)
    one = worker(
        memory_bytes=100 * MIB, graph_bytes=40 * MIB, staging_bytes=256 * MIB,
        counters=graph_counters({"eye": figures}),
    )  # fmt: skip
    lines = gpu_lines(answer(one, worker(name="fetch@h", kind="fetch")))
    assert ["gpu@h", "100.0", "MiB", "40.0", "MiB", "256.0", "MiB"] in lines
    assert ["gpu@h", "eye", "9", "7", "2", "1", "25.0%"] in lines


def test_a_worker_on_a_cpu_has_neither() -> None:
    assert gpu_tables(answer(worker(memory_bytes=MIB, staging_bytes=0))) == []
