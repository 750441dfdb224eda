"""``epd handoff``: shows what Prefill handed to Decode, for those who integrate an engine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from epd.cli.server import UrlOption, connect
from epd.cli.tables import plain_table
from epd.contracts.handoff import Handoff, HandoffItem

_SHOWN_DIGITS = 12


def handoff(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="The id that the engine chose.")],
    url: UrlOption = None,
    wait: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for it.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON that Decode reads.")] = False,
) -> None:
    """Show the handoff of a request: the position of each item in the prompt, and its metadata."""
    with connect(url) as client:
        found = client.handoff(request_id, wait=wait)
    if as_json:
        print(found.to_json())
        return
    _show(Console(), found)


def _show(console: Console, found: Handoff) -> None:
    table = plain_table("offset", "length", "type", "encoder", "grid", "key")
    for item in found.items:
        table.add_row(*_cells(item))
    console.print(table)
    facts = {"mrope delta": found.mrope_position_delta, "prompt tokens": found.prompt_tokens}
    lines = [f"{name} {value}" for name, value in facts.items() if value is not None]
    lines += [f"extra {', '.join(found.extra)}"] if found.extra else []
    if lines:
        console.print(escape("; ".join(lines)), highlight=False)


def _cells(item: HandoffItem) -> tuple[str, ...]:
    known = item.metadata
    grid = "-" if known.grid_thw is None else "x".join(map(str, known.grid_thw))
    length = f"{item.length} in {len(item.runs)} runs" if item.spans else str(item.length)
    return (
        str(item.offset), length, str(known.modality), escape(known.encoder), grid, item.key[:_SHOWN_DIGITS]
    )  # fmt: skip
