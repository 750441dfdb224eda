"""The end of encode messages: files, index, flights, states and notices. Knows the store, not Celery.

The order is what makes a kill at any point harmless: the file first, then index entry, flight and parts in
one round trip. Only then may a message be acked, and its blob be freed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epd.contracts.embedding import EmbeddingRef, EncoderCard, Entry, Metadata
from epd.contracts.errors import BlobMissing, Cancelled, EncoderNotReady, EpdError, Internal, StoreUnavailable
from epd.contracts.job import ErrorInfo, PartRecord, State
from epd.contracts.media import RawAudio, RawImage
from epd.contracts.messages import EncodeMessage
from epd.contracts.wire import ENCODE_QUEUE, WRITE
from epd.store.files.embedding_file import header_of
from epd.store.values import Completed
from gpu_worker.engine.slot import Dropped, DropReason, Encoded, Failed, Outcome
from gpu_worker.service.tickets import Fate, Ticket, Verdict
from tasks.flow.context import Context
from tasks.flow.item import ItemRun


def entry_of(message: EncodeMessage, card: EncoderCard, encoded: Encoded) -> Entry:
    """Build the entry; raises ``ValueError`` where rows, plan and grid disagree."""
    key = message.wanted.key
    ref = EmbeddingRef(
        key=key,
        shape=(encoded.plan.tokens, encoded.hidden),
        dtype=card.dtype,
        nbytes=encoded.rows.nbytes,
    )
    return Entry(ref=ref, metadata=_metadata(message, card, encoded))


def _metadata(message: EncodeMessage, card: EncoderCard, encoded: Encoded) -> Metadata:
    raw, facts = message.raw, encoded.plan.facts
    audio = raw if isinstance(raw, RawAudio) else None
    image = raw if not isinstance(raw, RawAudio) else None
    return Metadata(
        embedding_key=message.wanted.key,
        content_digest=message.digest,
        modality=message.wanted.track,
        encoder=card.name,
        dtype=card.dtype,
        token_count=encoded.plan.tokens,
        hidden=encoded.hidden,
        grid_thw=facts.grid_thw,
        merge_size=facts.merge_size,
        prefix_tokens=facts.prefix_tokens,
        second_per_grid_ts=facts.second_per_grid_ts,
        video_timestamps=facts.video_timestamps,
        audio_feature_lengths=facts.audio_feature_lengths,
        audio_seconds=audio.samples / audio.sample_rate if audio else None,
        deepstack_levels=facts.deepstack_levels,
        original_size=image.original_size if image else None,
        source_frames=image.source_frames if image else None,
        partial=not isinstance(raw, RawImage) and raw.partial,
        audio=message.audio,
        weights_digest=card.weights_digest,
        source_bytes=message.source_bytes,
    )


_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Patience:
    """Repeats calls until they are through, their time is over, or the worker stops. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ended = threading.Event()

    @property
    def ended(self) -> bool:
        """Whether ``end`` was called."""
        return self._ended.is_set()

    def end(self) -> None:
        """From now on every call is tried once."""
        self._ended.set()

    def insist(self, call: Callable[[], object], until: float) -> bool:
        """Call until it does not raise ``StoreUnavailable``; ``until`` is Unix seconds.

        Returns False when it never was through. The call has to be safe to repeat.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                call()
            except StoreUnavailable as error:
                if self._clock() + pause > until or self._ended.wait(pause):
                    _log.error("given up: %s", error)
                    return False
                _log.warning("the store is away, trying again: %s", error)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return True


_CANCELLED = PartRecord(state=State.CANCELLED, error=ErrorInfo.of(Cancelled("the encode was cancelled")))

#: Failures that a fresh fetch of the item mends.
_REFETCHED = (BlobMissing, EncoderNotReady)


@dataclass(frozen=True, slots=True)
class _Done:
    """An embedding whose file is there: what to index, and what to tell once that is done."""

    completed: Completed
    verdict: Verdict


class Reply:
    """Settles outcomes with the store. Any thread may call it."""

    def __init__(self, context: Context, cards: Mapping[str, EncoderCard], patience: Patience) -> None:
        self._context = context
        self._cards = dict(cards)
        self._patience = patience

    def settle(self, batch: Sequence[tuple[Ticket, Outcome]]) -> list[Verdict]:
        """Make every outcome known; returns a verdict for each ticket.

        While the store is down this waits, up to the latest deadline of the batch. Tickets that could not
        be settled before the worker stops have no verdict: their messages stay unacked.
        """
        written = [(ticket, self._written(ticket, outcome)) for ticket, outcome in batch]
        done = [(ticket, result) for ticket, result in written if isinstance(result, _Done)]
        verdicts = self._complete(done) if done else []
        for ticket, result in written:
            if not isinstance(result, _Done):
                verdicts += self._end(ticket, result)
        return verdicts

    def free_blobs(self, messages: Sequence[EncodeMessage]) -> None:
        """Remove the raw blobs of messages that were acked. What fails here is swept by age."""
        try:
            self._context.store.blobs.free_all([message.raw.blob for message in messages])
        except (EpdError, OSError) as error:
            _log.warning("some of %d blobs were not freed: %s", len(messages), error)

    def _written(self, ticket: Ticket, outcome: Outcome) -> _Done | Failed | Dropped:
        """Publish the file of one embedding; a fault of its writing is the item's own."""
        if not isinstance(outcome, Encoded):
            return outcome
        started = time.perf_counter()
        try:
            card = self._cards[ticket.message.wanted.encoder]
            entry = entry_of(ticket.message, card, outcome)
            header = header_of(entry.metadata)
            self._context.store.embeddings.publish_file(entry.ref, outcome.rows, header)
        except EpdError as error:
            return Failed(error)
        except Exception as error:
            _log.exception("embedding %s could not be written", ticket.message.wanted.key)
            return Failed(Internal(f"writing failed: {type(error).__name__}"))
        timings = _timings(ticket, outcome, time.perf_counter() - started)
        use = None if ticket.reuse is None else ticket.reuse.use
        completed = Completed(entry, ticket.message.job_id, ticket.part, timings, use)
        return _Done(completed, _encoded_verdict(ticket, outcome, timings))

    def _complete(self, done: Sequence[tuple[Ticket, _Done]]) -> list[Verdict]:
        """Index all in one round trip; no answer is told as such once the latest deadline is over."""
        completed = [result.completed for _, result in done]
        until = max(ticket.message.deadline for ticket, _ in done)
        try:
            through = self._patience.insist(lambda: self._context.store.flights.complete(completed), until)
        except Exception as error:
            _log.exception("%d embeddings could not be indexed", len(done))
            failed = Failed(Internal(f"indexing failed: {type(error).__name__}"))
            return [verdict for ticket, _ in done for verdict in self._end(ticket, failed)]
        if through:
            return [result.verdict for _, result in done]
        return [verdict for ticket, _ in done for verdict in self._given_up(ticket)]

    def _end(self, ticket: Ticket, outcome: Failed | Dropped) -> list[Verdict]:
        """End a ticket that gave no rows."""
        verdicts: list[Verdict] = []
        try:
            self._patience.insist(
                lambda: verdicts.append(self._end_once(ticket, outcome)), ticket.message.deadline
            )
        except Exception as error:
            _log.exception("job %s: an outcome could not be told", ticket.message.job_id)
            return [Verdict(ticket.id, Fate.FAILED, error=Internal(type(error).__name__))]
        return verdicts or self._given_up(ticket)

    def _given_up(self, ticket: Ticket) -> list[Verdict]:
        """Nothing when the worker stops, so that another one gets the message; else nobody waits any more."""
        if self._patience.ended:
            return []
        return [Verdict(ticket.id, Fate.FAILED, error=StoreUnavailable("no answer up to the deadline"))]

    def _end_once(self, ticket: Ticket, outcome: Failed | Dropped) -> Verdict:
        if isinstance(outcome, Failed):
            return self._fail(ticket, outcome.error)
        message, run = ticket.message, self._run(ticket)
        if outcome.reason is DropReason.EXPIRED:
            fate = Fate.EXPIRED
            run.expire()
        else:
            # Final already where the job was cancelled; not where an operator revoked the task.
            fate = Fate.CANCELLED
            self._context.store.jobs.finish(message.job_id, ticket.part, _CANCELLED)
        run.withdraw([message.wanted])
        return Verdict(ticket.id, fate, {"fate": fate.value})

    def _fail(self, ticket: Ticket, error: EpdError) -> Verdict:
        wanted, run = ticket.message.wanted, self._run(ticket)
        if isinstance(error, _REFETCHED) and run.send_back():
            if isinstance(error, EncoderNotReady):  # the fetch will ask for another key
                run.withdraw([wanted])
            return Verdict(ticket.id, Fate.REFETCHED, {"fate": Fate.REFETCHED.value, "reason": error.code})
        run.fail_flight(wanted, error)
        return Verdict(ticket.id, Fate.FAILED, error=error)

    def _run(self, ticket: Ticket) -> ItemRun:
        return ItemRun(self._context, ticket.message, ticket.message.item)


def _timings(ticket: Ticket, encoded: Encoded, written: float) -> dict[str, float]:
    queued = max(0.0, ticket.begun_at - ticket.message.enqueued_at)
    return {**ticket.message.timings, ENCODE_QUEUE: queued, **encoded.timings, WRITE: written}


def _encoded_verdict(ticket: Ticket, encoded: Encoded, timings: Mapping[str, float]) -> Verdict:
    summary: dict[str, str | int | float] = {
        "key": ticket.message.wanted.key,
        "encoder": ticket.message.wanted.encoder,
        "tokens": encoded.plan.tokens,
        "batch": encoded.batch_size,
    }
    if ticket.reuse is not None:
        summary["reused"] = len(ticket.reuse.held)
    summary |= {f"{name}_s": round(seconds, 6) for name, seconds in timings.items()}
    return Verdict(ticket.id, Fate.ENCODED, summary)
