"""What the fetch of items asks of the store: one round trip before the downloads, and one after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epd.contracts.job import PartId, Stage
from epd.store import keys
from epd.store.connection import Connection, read_record
from epd.store.flights import claim_command, take_waiters_command, waiters_of
from epd.store.jobs import advance_command
from epd.store.keys import milliseconds
from epd.store.scripts import Command
from epd.store.values import Claim, SourceMemo, Waiter


@dataclass(frozen=True, slots=True)
class Download:
    """A download that items share: the key of its flight, the source key of its URL, and who asks for it."""

    key: str
    source_key: str
    waiter: Waiter


@dataclass(frozen=True, slots=True)
class Starting:
    """An item that is about to be fetched: the parts that it may have, and its download if it has a URL."""

    parts: Sequence[PartId]
    download: Download | None


@dataclass(frozen=True, slots=True)
class Started:
    """The answer for one item.

    ``open_parts`` have no result yet; without any, the item's work is dropped. ``claim`` is the answer of the
    download's flight and ``memo`` what is known of the URL, where there is one.
    """

    open_parts: frozenset[PartId]
    claim: Claim | None = None
    memo: SourceMemo | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """After a download: the claim on the embedding, whether the part is still open, and who waits."""

    claim: Claim
    is_open: bool
    waiters: Sequence[Waiter]


class FetchSteps:
    """The round trips of a fetch. Each may be repeated."""

    def __init__(self, connection: Connection, *, lease: float, memo_ttl: float) -> None:
        """A flight lives ``lease`` seconds without renewal, and a memo ``memo_ttl`` seconds."""
        self._connection = connection
        self._lease_ms = milliseconds(lease)
        self._memo_ttl_ms = milliseconds(memo_ttl)

    def start(self, job_id: str, items: Sequence[Starting]) -> list[Started]:
        """Mark the items of a job as being fetched, claim their downloads, and read the memos of their URLs.

        A claim is made for items that turn out to have no open part, too; the caller leaves it then.
        """
        parts = [(job_id, part) for item in items for part in item.parts]
        downloads = [item.download for item in items if item.download is not None]
        commands = [advance_command(parts, Stage.FETCH)]
        if downloads:
            commands.append(claim_command([(each.key, each.waiter) for each in downloads], self._lease_ms))
            commands.append(("MGET", *(keys.source(each.source_key) for each in downloads)))
        advanced, *claimed = self._connection.pipe(commands)
        is_open = dict(zip((part for _, part in parts), advanced, strict=True))
        answers = iter(zip(*claimed, strict=True))
        return [self._started(item, is_open, next(answers) if item.download else None) for item in items]

    def _started(
        self, item: Starting, is_open: dict[PartId, int], answer: tuple[str, str | None] | None
    ) -> Started:
        open_parts = frozenset(part for part in item.parts if is_open[part])
        if answer is None:
            return Started(open_parts)
        claim, memo = answer
        return Started(open_parts, Claim(claim), read_record(SourceMemo, memo))

    def arrive(self, download: Download, memo: SourceMemo, embedding: str, waiter: Waiter) -> Arrived:
        """Note what was downloaded, claim the embedding of the item's only part, and take those who wait.

        Args:
            download: The download, which the item leads.
            memo: What is now known of the URL.
            embedding: The key of the embedding that the item needs.
            waiter: The item as a waiter for that embedding.
        """
        leader = download.waiter
        commands: list[Command] = [
            ("SET", keys.source(download.source_key), memo.to_json(), "PX", self._memo_ttl_ms),
            claim_command([(embedding, waiter)], self._lease_ms),
            advance_command([(waiter.job_id, waiter.part)], Stage.DECODE),
            take_waiters_command(download.key, leader.job_id, leader.part),
        ]
        _, (claim,), (is_open,), left = self._connection.pipe(commands)
        return Arrived(Claim(claim), bool(is_open), waiters_of(left))
