"""The demo's table: one row an item, one more for a video's audio track."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from epd.contracts.answers import ItemAnswer, JobAnswer, PartAnswer
from epd.contracts.job import State

#: Stages in the order of the pipeline; others that the server reports follow by name.
STAGES = ("fetch", "decode", "queue", "encode")


def job_table(job: JobAnswer, *, title: str) -> Table:
    """The job as a table; times are milliseconds."""
    stages = _stages(job)
    table = Table(title=title, title_justify="left")
    for name in ("item", "type", "state"):
        table.add_column(name)
    for name in ("tokens", "shape", "cached", *(f"{stage} ms" for stage in stages)):
        table.add_column(name, justify="right")
    for name, part in named_parts(job):
        table.add_row(name, str(part.type), *_result_cells(part), *_time_cells(part, stages))
    return table


def named_parts(job: JobAnswer) -> Iterator[tuple[str, PartAnswer]]:
    """Every part with a name to show: the item's own, or its id and the track."""
    for item in job.items:
        yield item_name(item), item
        for track in item.tracks:
            yield f"{item_name(item)} ({track.type} track)", track


def item_name(item: ItemAnswer) -> str:
    """The caller's id, else the item's place."""
    return item.id or f"#{item.index}"


def _stages(job: JobAnswer) -> list[str]:
    seen = {stage for _, part in named_parts(job) for stage in part.timings}
    return [stage for stage in STAGES if stage in seen] + sorted(seen - set(STAGES))


def _result_cells(part: PartAnswer) -> tuple[str, str, str, str]:
    if part.state is not State.DONE or part.embedding is None:
        return str(part.error.code if part.error else part.state), "-", "-", "-"
    tokens, hidden = part.embedding.shape
    return str(part.state), str(tokens), f"{tokens} x {hidden}", "yes" if part.cached else "no"


def _time_cells(part: PartAnswer, stages: list[str]) -> list[str]:
    return [f"{part.timings[stage] * 1e3:.0f}" if stage in part.timings else "-" for stage in stages]
