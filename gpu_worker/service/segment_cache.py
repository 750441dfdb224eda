"""The segment cache: cached rows of an item's segments are found before the item is queued.

Looking for them needs hashes of the raw media, so it has threads of its own.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import BlobMissing, EpdError, StoreUnavailable
from epd.contracts.media import RawAudio, RawFrames, RawImage
from epd.identity import encoder_identity, segment_key
from epd.store.open import Store
from epd.store.records import SegmentPlace
from epd.telemetry.counters import Count, Counters
from gpu_worker.engine.batcher import Plans
from gpu_worker.engine.slot import Encoded, Failed, Outcome
from gpu_worker.service.segment_reuse import SegmentReuse, open_cached_rows
from gpu_worker.service.tickets import TaskResult, TaskStatus, Ticket

if TYPE_CHECKING:
    from gpu_worker.encoders.base import ItemPlan

_log = logging.getLogger(__name__)

#: Hashing releases the interpreter's lock. More threads would take cores from staging and writing.
_THREADS = 2

_SAMPLE_BYTES = 4
_PIXEL_BYTES = 3

#: Called with a ticket and its blob's file once the search for cached segments has ended.
OnPrepared = Callable[[Ticket, Path], None]


class SegmentCache:
    """Finds and records the rows of segments. A failure here costs an encode but never fails an item."""

    def __init__(self, store: Store, plans: Mapping[str, Plans], cards: Mapping[str, EncoderCard]) -> None:
        """``plans`` are the loaded encoders, by name."""
        self._store = store
        self._plans = dict(plans)
        self._cards = dict(cards)
        self._identities = {name: encoder_identity(card) for name, card in cards.items()}
        self._threads = ThreadPoolExecutor(_THREADS, "encode-segments")

    def applies_to(self, ticket: Ticket) -> bool:
        """Whether the item may have segments; an image has none."""
        message = ticket.message
        return not isinstance(message.raw, RawImage) and message.wanted.encoder in self._plans

    def prepare(self, ticket: Ticket, blob: Path, on_prepared: OnPrepared) -> None:
        """Look for cached rows in a thread, then call ``on_prepared`` there with the updated ticket."""
        try:
            self._threads.submit(self._prepare, ticket, blob, on_prepared)
        except RuntimeError:  # stopped: the message stays unacked
            _log.info("ticket %s came after the worker began to stop", ticket.id)

    def join(self, ticket: Ticket, outcome: Outcome) -> Outcome:
        """Turn the outcome of a ticket's piece into that of the whole item.

        If cached rows were lost since they were found, the outcome is a missing blob: the item is fetched and
        encoded again.
        """
        if ticket.reuse is None or not isinstance(outcome, Encoded):
            return outcome
        try:
            return ticket.reuse.join(outcome)
        except (OSError, ValueError, MemoryError) as error:
            _log.error("rows of %s cannot be joined: %s", ticket.message.wanted.key, error)
            return Failed(BlobMissing("known rows could not be joined with new ones"))

    def finish(
        self, batch: Sequence[tuple[Ticket, Outcome]], results: Sequence[TaskResult], counters: Counters
    ) -> None:
        """Record and count the segments of stored embeddings, and close the files of cached rows."""
        try:
            self._record(batch, results, counters)
        except StoreUnavailable as error:
            _log.warning("the segments of %d items were not recorded: %s", len(batch), error)
        except Exception:
            _log.exception("the segments of %d items were not recorded", len(batch))
        for ticket, _ in batch:
            if ticket.reuse is not None:
                ticket.reuse.close()

    def stop(self) -> None:
        """Take nothing more in. Messages that wait for a thread stay unacked."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, ticket: Ticket, blob: Path, on_prepared: OnPrepared) -> None:
        started = time.perf_counter()
        try:
            reuse = self._find(ticket, blob)
        except EpdError as error:  # the engine reports a missing blob or a plan that fails
            _log.info("no search for segments of %s: %s", ticket.message.wanted.key, error)
            reuse = None
        except Exception:
            _log.exception("the search for segments of %s failed", ticket.message.wanted.key)
            reuse = None
        if reuse is not None:
            ticket = replace(ticket, reuse=replace(reuse, seconds=time.perf_counter() - started))
        on_prepared(ticket, blob)

    def _find(self, ticket: Ticket, blob: Path) -> SegmentReuse | None:
        """The item's segments and those of them that are cached; None if it cannot be cut."""
        raw, name = ticket.message.raw, ticket.message.wanted.encoder
        if isinstance(raw, RawImage):
            return None
        plan = self._plans[name].plan(raw, ticket.message.item.options)
        if plan.raw_step is None:
            return None
        keys = segment_keys(blob, raw, plan, self._identities[name])
        found = enumerate(self._store.segments.find(keys))
        places = {index: place for index, place in found if place is not None}
        card, tokens = self._cards[name], plan.tokens_of_segments()
        cached = open_cached_rows(places, tokens, card, self._store.embeddings) if places else {}
        return SegmentReuse.of(plan, keys, card, cached)

    def _record(
        self, batch: Sequence[tuple[Ticket, Outcome]], results: Sequence[TaskResult], counters: Counters
    ) -> None:
        stored = {result.ticket_id for result in results if result.status is TaskStatus.ENCODED}
        places: dict[str, SegmentPlace] = {}
        for ticket, outcome in batch:
            if ticket.reuse is None:
                continue
            if ticket.id in stored and isinstance(outcome, Encoded):
                key, name = ticket.message.wanted.key, ticket.message.wanted.encoder
                places |= ticket.reuse.places(key, outcome.rows)
                counters.add(Count.SEGMENTS_REUSED, len(ticket.reuse.cached), encoder=name)
                counters.add(Count.SEGMENTS_ENCODED, len(ticket.reuse.missing), encoder=name)
        if places:
            self._store.segments.note(places)


def segment_keys(path: Path, raw: RawFrames | RawAudio, plan: ItemPlan, encoder: str) -> tuple[str, ...]:
    """The keys of an item's segments, in order.

    This reads the raw media once, at about the speed of sha256 (1 to 2 GB/s per core).

    Args:
        path: the raw blob's file.
        raw: the shape of the raw media.
        plan: the item's plan; it has a ``raw_step``.
        encoder: the encoder's identity.

    Raises:
        BlobMissing: the file is gone, or its size does not match its shape.
    """
    step = plan.raw_step or 0
    entry = _entry_bytes(raw)
    with _mapped(path, _entries(raw) * entry) as data, memoryview(data) as view:
        starts = range(0, len(view), step * entry)
        digests = [hashlib.sha256(view[start : start + step * entry]).hexdigest() for start in starts]
    return tuple(
        segment_key(
            encoder=encoder,
            media=raw.kind,
            shape=_shape(raw, min(step, _entries(raw) - number * step)),
            target=plan.target or (),
            digest=digest,
        )
        for number, digest in enumerate(digests)
    )


def _mapped(path: Path, nbytes: int) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise BlobMissing("the raw media is gone") from error
    if len(data) != nbytes:
        data.close()
        raise BlobMissing("the raw media has another size than its shape says")
    return data


def _entries(raw: RawFrames | RawAudio) -> int:
    return raw.samples if isinstance(raw, RawAudio) else raw.frames


def _entry_bytes(raw: RawFrames | RawAudio) -> int:
    return _SAMPLE_BYTES if isinstance(raw, RawAudio) else raw.height * raw.width * _PIXEL_BYTES


def _shape(raw: RawFrames | RawAudio, entries: int) -> tuple[int, ...]:
    """The shape of a segment's bytes: samples and their rate, or frames, height and width."""
    return (entries, raw.sample_rate) if isinstance(raw, RawAudio) else (entries, raw.height, raw.width)
