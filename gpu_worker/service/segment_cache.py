"""Finding known segments before an item is queued, beside the threads that feed the device."""

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
from epd.store.records import SegmentPlace
from epd.store.store import Store
from epd.telemetry.counters import Count, Counters
from gpu_worker.engine.batcher import Plans
from gpu_worker.engine.slot import Encoded, Failed, Outcome
from gpu_worker.service.segment_reuse import Reuse, hold_rows
from gpu_worker.service.tickets import Fate, Ticket, Verdict

if TYPE_CHECKING:
    from gpu_worker.encoders.base import ItemPlan


_SAMPLE_BYTES = 4
_PIXEL_BYTES = 3


def segment_keys(path: Path, raw: RawFrames | RawAudio, plan: ItemPlan, encoder: str) -> tuple[str, ...]:
    """A key a segment, in order; ``encoder`` is the encoder's identity.

    Reads the raw media once, at about the speed of sha256 (1 to 2 GB/s a core), beside other threads.

    Raises:
        BlobMissing: the file is gone, or is not of the size that its shape says.
    """
    step = plan.raw_step or 0
    entry = _entry_bytes(raw)
    with _mapped(path, _entries(raw) * entry) as data, memoryview(data) as view:
        pieces = range(0, len(view), step * entry)
        digests = [hashlib.sha256(view[at : at + step * entry]).hexdigest() for at in pieces]
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
    """How a segment's bytes are read: samples and their rate, or frames, height and width."""
    return (entries, raw.sample_rate) if isinstance(raw, RawAudio) else (entries, raw.height, raw.width)


_log = logging.getLogger(__name__)

#: Hashing runs outside the interpreter's lock; more threads would take the cores of staging and writing.
_THREADS = 2

#: What is called with a ticket once its known segments are found.
Then = Callable[[Ticket, Path], None]


class SegmentCache:
    """Known rows of tickets. Whatever goes wrong here costs an encode, and never an item."""

    def __init__(self, store: Store, plans: Mapping[str, Plans], cards: Mapping[str, EncoderCard]) -> None:
        """``plans`` are the loaded encoders by name."""
        self._store = store
        self._plans = dict(plans)
        self._cards = dict(cards)
        self._identities = {name: encoder_identity(card) for name, card in cards.items()}
        self._threads = ThreadPoolExecutor(_THREADS, "encode-segments")

    def concerns(self, ticket: Ticket) -> bool:
        """Whether the item may have segments: a picture has none."""
        message = ticket.message
        return not isinstance(message.raw, RawImage) and message.wanted.encoder in self._plans

    def prepare(self, ticket: Ticket, blob: Path, then: Then) -> None:
        """Look for known rows in a thread, then call ``then`` there, with the ticket that knows of them."""
        try:
            self._threads.submit(self._run, ticket, blob, then)
        except RuntimeError:  # stopped: the message stays unacked
            _log.info("ticket %s came while the worker stops", ticket.id)

    def joined(self, ticket: Ticket, outcome: Outcome) -> Outcome:
        """The outcome of a ticket's piece as that of the whole item.

        Where known rows were lost since the look, the item is fetched and encoded anew, as with a lost blob.
        """
        if ticket.reuse is None or not isinstance(outcome, Encoded):
            return outcome
        try:
            return ticket.reuse.joined(outcome)
        except (OSError, ValueError, MemoryError) as error:
            _log.error("rows of %s cannot be joined: %s", ticket.message.wanted.key, error)
            return Failed(BlobMissing("known rows could not be joined with new ones"))

    def finish(
        self, batch: Sequence[tuple[Ticket, Outcome]], verdicts: Sequence[Verdict], counters: Counters
    ) -> None:
        """Note and count the segments of what was stored, and let go of the files of known rows."""
        try:
            self._note(batch, verdicts, counters)
        except StoreUnavailable as error:
            _log.warning("the segments of %d items were not noted: %s", len(batch), error)
        except Exception:
            _log.exception("the segments of %d items were not noted", len(batch))
        for ticket, _ in batch:
            if ticket.reuse is not None:
                ticket.reuse.close()

    def _note(
        self, batch: Sequence[tuple[Ticket, Outcome]], verdicts: Sequence[Verdict], counters: Counters
    ) -> None:
        stored = {verdict.ticket_id for verdict in verdicts if verdict.fate is Fate.ENCODED}
        places: dict[str, SegmentPlace] = {}
        for ticket, outcome in batch:
            if ticket.reuse is None:
                continue
            if ticket.id in stored and isinstance(outcome, Encoded):
                key, name = ticket.message.wanted.key, ticket.message.wanted.encoder
                places |= ticket.reuse.places(key, outcome.rows)
                counters.add(Count.SEGMENTS_REUSED, len(ticket.reuse.held), encoder=name)
                counters.add(Count.SEGMENTS_ENCODED, len(ticket.reuse.missing), encoder=name)
        if places:
            self._store.segments.note(places)

    def stop(self) -> None:
        """Take nothing more in; what was not looked at yet stays unacked."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, ticket: Ticket, blob: Path, then: Then) -> None:
        started = time.perf_counter()
        try:
            reuse = self._look(ticket, blob)
        except EpdError as error:  # a blob that is gone and a plan that fails are told by the engine
            _log.info("no look at the segments of %s: %s", ticket.message.wanted.key, error)
            reuse = None
        except Exception:
            _log.exception("the segments of %s could not be looked at", ticket.message.wanted.key)
            reuse = None
        if reuse is not None:
            ticket = replace(ticket, reuse=replace(reuse, seconds=time.perf_counter() - started))
        then(ticket, blob)

    def _look(self, ticket: Ticket, blob: Path) -> Reuse | None:
        """The item's segments and the known rows among them; None where it cannot be cut."""
        raw, name = ticket.message.raw, ticket.message.wanted.encoder
        if isinstance(raw, RawImage):
            return None
        plan = self._plans[name].plan(raw, ticket.message.item.options)
        if plan.raw_step is None:
            return None
        keys = segment_keys(blob, raw, plan, self._identities[name])
        found = self._store.segments.find(keys)
        wanted = {index: place for index, place in enumerate(found) if place is not None}
        card = self._cards[name]
        held = hold_rows(wanted, plan.tokens_of_segments(), card, self._store.embeddings) if wanted else {}
        return Reuse.of(plan, keys, card, held)
