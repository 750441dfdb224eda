"""``epd cache``: list, measure and empty the embedding cache through the REST API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer

from epd.cli.server import UrlOption, connect
from epd.cli.tables import byte_size, print_columns, wide_console
from epd.client import Client
from epd.contracts.errors import InvalidRequest, NotFound
from epd.contracts.media import Modality
from epd.contracts.responses import CachedAnswer, StatusAnswer, Tier, TierStats

cache_app = typer.Typer(help="Inspect the embedding cache and remove entries.", no_args_is_help=True)

EncoderOption = Annotated[str | None, typer.Option("--encoder", help="Only this encoder.")]
_ROWS = 100
#: Columns of ``ls`` that are dropped in a narrow terminal, in this order. The key stays.
_DROPPABLE = ("dtype", "revision", "used", "shape", "tiers", "type", "size", "encoder")


@cache_app.command("ls")
def list_cached(
    url: UrlOption = None,
    encoder: EncoderOption = None,
    modality: Annotated[Modality | None, typer.Option("--modality", help="Only this media type.")] = None,
    tier: Annotated[Tier | None, typer.Option("--tier", help="Only files in this tier.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most entries to show.")] = _ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per entry.")] = False,
) -> None:
    """Show what is cached, one line per entry in no order. Keys are not shortened."""
    with connect(url, timeout=30) as client:
        found = client.cached(encoder=encoder, modality=modality, tier=tier, page=min(limit, 500))
        rows = list(islice(found, limit + 1))
        if not rows:
            _report_unknown(client, encoder)
    if as_json:
        for row in rows[:limit]:
            print(row.model_dump_json())
        return
    console = wide_console()
    print_columns(console, _columns(rows[:limit]), droppable=_DROPPABLE)
    if len(rows) > limit:
        console.print(f"there are more; --limit shows more than {limit}")


@cache_app.command("stat")
def show_stat(
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show sizes, hit ratio, evictions and moves between the tiers.

    Evicted files were removed to keep the limit of their tier; a file that leaves L1 but stays in L2 counts
    too. Dropped files are in no tier any more: they have to be encoded again.
    """
    with connect(url, timeout=10) as client:
        answer = client.status()
    if as_json:
        fields = {"cache_entries", "cache_bytes", "cache_limit", "l2", "cache_totals"}
        print(answer.model_dump_json(include=fields, indent=2))
        return
    console = wide_console()
    for line in cache_lines(answer):
        console.print(line, highlight=False)


@cache_app.command("rm")
def remove(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="64 hex digits each, as ls prints.")],
    url: UrlOption = None,
) -> None:
    """Remove embeddings from the cache. Exit code 1 when one of them was not there."""
    missing = 0
    with connect(url, timeout=30) as client:
        for key in keys:
            try:
                client.forget(key)
            except NotFound as error:
                missing += 1
                print(f"{key}: {error.message}")
    print(f"removed {len(keys) - missing}")
    if missing:
        raise typer.Exit(1)


@cache_app.command("clear")
def clear(
    url: UrlOption = None,
    encoder: EncoderOption = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Only this weights digest; its first digits are enough.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Empty the cache, or remove the embeddings of one encoder or of one revision of its weights.

    Asks for confirmation first. A script has to give --yes.
    """
    whose = f"encoder {encoder}" if encoder else "every encoder"
    if revision:
        whose += f", revision {revision}"
    if not yes and not _agreed(f"Remove all embeddings of {whose}?"):
        raise typer.Abort
    with connect(url, timeout=60) as client:
        removed = client.clear(encoder=encoder, weights_digest=revision)
        if not removed:
            _report_unknown(client, encoder)
        print(f"removed {removed}")


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort as error:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        raise InvalidRequest("no confirmation, so nothing was removed; --yes skips the question") from error


def _report_unknown(client: Client, encoder: str | None) -> None:
    """Nothing was found: print to stderr if the server has no encoder of that name now."""
    if encoder is None:
        return
    known = [one.name for one in client.models().encoders]
    if encoder not in known:
        print(
            f"nothing found, and no encoder is named {encoder!r}; known: {', '.join(known)}", file=sys.stderr
        )


def _columns(rows: list[CachedAnswer]) -> dict[str, list[str]]:
    return {
        "key": [row.key for row in rows],
        "type": [str(row.modality) for row in rows],
        "encoder": [row.encoder for row in rows],
        "revision": [(row.weights_digest or "-")[:12] for row in rows],
        "shape": ["x".join(map(str, row.shape)) for row in rows],
        "dtype": [row.dtype for row in rows],
        "size": [byte_size(row.nbytes) for row in rows],
        "tiers": ["+".join(row.tiers) + (" pinned" if row.pinned else "") for row in rows],
        "used": [datetime.fromtimestamp(row.used_at, UTC).strftime("%Y-%m-%d %H:%M:%S") for row in rows],
    }


def cache_lines(answer: StatusAnswer) -> Iterator[str]:
    """The cache in a few lines: its tiers, its hits and its evictions."""
    first = TierStats(entries=answer.cache_entries, nbytes=answer.cache_bytes, limit=answer.cache_limit)
    yield _tier_line("cache", first)
    if answer.l2 is not None:
        yield _tier_line("cache on L2", answer.l2)
    totals = answer.cache_totals
    ratio = "-" if totals.hit_ratio is None else f"{totals.hit_ratio:.1%}"
    hits = f"{totals.hits_l1 + totals.hits_l2} hits ({totals.hits_l2} in L2), {totals.misses} misses"
    yield f"hit ratio: {ratio}: {hits}"
    left = f"{totals.evicted_l1} from L1, {totals.evicted_l2} from L2"
    gone = f"{left}, {totals.dropped} of them dropped from the cache; {totals.removed} removed"
    yield f"evicted: {gone}; {totals.corrupt} damaged files deleted"
    if answer.l2 is not None:
        moves = f"{totals.demotions} to L2, {totals.promotions} back to L1, {totals.failed_moves} failed"
        yield f"moved: {moves}"


def _tier_line(name: str, tier: TierStats) -> str:
    return f"{name}: {tier.entries} embeddings, {byte_size(tier.nbytes)} of {byte_size(tier.limit)}"
