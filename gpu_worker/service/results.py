"""How encode messages end: files, index entries, flights, part states and notices are written to the store.

The order makes a kill at any point harmless: first the file, then index entry, flight and parts in one round
trip. Only after that may a message be acked and its blob be freed.
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
from epd.contracts.timings import ENCODE_QUEUE, WRITE
from epd.store.files.embedding_format import header_of
from epd.store.values import Completed
from gpu_worker.engine.slot import Dropped, DropReason, Encoded, Failed, Outcome
from gpu_worker.service.tickets import TaskResult, TaskStatus, Ticket
from tasks.flow.context import Context
from tasks.flow.item import ItemRun

_log = logging.getLogger(__name__)

_CANCELLED = PartRecord(state=State.CANCELLED, error=ErrorInfo.of(Cancelled("the encode was cancelled")))

#: Failures that go away when the item is fetched again.
_REFETCHED = (BlobMissing, EncoderNotReady)

#: Seconds between two tries of a call to the store: the first pause, doubled up to the longest.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class _Written:
    """An embedding whose file is written: what to index, and the result once that is done."""

    completed: Completed
    result: TaskResult


class ResultWriter:
    """Writes the outcomes of tickets to the store. Thread-safe."""

    def __init__(self, context: Context, cards: Mapping[str, EncoderCard], retry: StoreRetry) -> None:
        self._context = context
        self._cards = dict(cards)
        self._retry = retry

    def settle(self, batch: Sequence[tuple[Ticket, Outcome]]) -> list[TaskResult]:
        """Write every outcome, and return a result for each ticket.

        While the store is down this waits, at most until the latest deadline of the batch. A ticket that
        could not be settled before the worker stops has no result: its message stays unacked.
        """
        outcomes = [(ticket, self._write_file(ticket, outcome)) for ticket, outcome in batch]
        written = [(ticket, outcome) for ticket, outcome in outcomes if isinstance(outcome, _Written)]
        results = self._complete(written) if written else []
        for ticket, outcome in outcomes:
            if not isinstance(outcome, _Written):
                results += self._end(ticket, outcome)
        return results

    def free_blobs(self, messages: Sequence[EncodeMessage]) -> None:
        """Remove the raw blobs of acked messages. Blobs that cannot be removed now are swept by age later."""
        try:
            self._context.store.blobs.free_all([message.raw.blob for message in messages])
        except (EpdError, OSError) as error:
            _log.warning("some of %d blobs were not freed: %s", len(messages), error)

    def _write_file(self, ticket: Ticket, outcome: Outcome) -> _Written | Failed | Dropped:
        """Publish the file of one embedding. If that fails, only this item fails."""
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
        return _Written(completed, _encoded_result(ticket, outcome, timings))

    def _complete(self, written: Sequence[tuple[Ticket, _Written]]) -> list[TaskResult]:
        """Index all in one round trip. After the latest deadline they fail, since nobody waits any more."""
        completed = [one.completed for _, one in written]
        until = max(ticket.message.deadline for ticket, _ in written)
        try:
            done = self._retry.call(lambda: self._context.store.flights.complete(completed), until)
        except Exception as error:
            _log.exception("%d embeddings could not be indexed", len(written))
            failed = Failed(Internal(f"indexing failed: {type(error).__name__}"))
            return [result for ticket, _ in written for result in self._end(ticket, failed)]
        if done:
            return [one.result for _, one in written]
        return [result for ticket, _ in written for result in self._unsettled(ticket)]

    def _end(self, ticket: Ticket, outcome: Failed | Dropped) -> list[TaskResult]:
        """End a ticket that has no rows."""
        results: list[TaskResult] = []
        try:
            self._retry.call(lambda: results.append(self._end_once(ticket, outcome)), ticket.message.deadline)
        except Exception as error:
            _log.exception("job %s: an outcome could not be written", ticket.message.job_id)
            return [TaskResult(ticket.id, TaskStatus.FAILED, error=Internal(type(error).__name__))]
        return results or self._unsettled(ticket)

    def _unsettled(self, ticket: Ticket) -> list[TaskResult]:
        """No result when the worker stops, so that another worker gets the message; else a failure."""
        if self._retry.stopped:
            return []
        error = StoreUnavailable("no answer up to the deadline")
        return [TaskResult(ticket.id, TaskStatus.FAILED, error=error)]

    def _end_once(self, ticket: Ticket, outcome: Failed | Dropped) -> TaskResult:
        if isinstance(outcome, Failed):
            return self._fail(ticket, outcome.error)
        message, run = ticket.message, self._run(ticket)
        if outcome.reason is DropReason.EXPIRED:
            status = TaskStatus.EXPIRED
            run.expire()
        else:
            # If the job was cancelled, the part is final already; if an operator revoked the task, it is not.
            status = TaskStatus.CANCELLED
            self._context.store.jobs.finish(message.job_id, ticket.part, _CANCELLED)
        run.withdraw([message.wanted])
        return TaskResult(ticket.id, status, {"fate": status.value})

    def _fail(self, ticket: Ticket, error: EpdError) -> TaskResult:
        wanted, run = ticket.message.wanted, self._run(ticket)
        if isinstance(error, _REFETCHED) and run.send_back():
            if isinstance(error, EncoderNotReady):  # fetch will use another key
                run.withdraw([wanted])
            summary: dict[str, str | int | float] = {"fate": TaskStatus.REFETCHED.value, "reason": error.code}
            return TaskResult(ticket.id, TaskStatus.REFETCHED, summary)
        run.fail_flight(wanted, error)
        return TaskResult(ticket.id, TaskStatus.FAILED, error=error)

    def _run(self, ticket: Ticket) -> ItemRun:
        return ItemRun(self._context, ticket.message, ticket.message.item)


class StoreRetry:
    """Repeats calls while the store is down, until a deadline or until the worker stops. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._stop = threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Try every further call only once, and end the pauses of those that wait."""
        self._stop.set()

    def call(self, call: Callable[[], object], until: float) -> bool:
        """Repeat ``call`` while it raises ``StoreUnavailable``; ``until`` is a Unix time in seconds.

        The call has to be safe to repeat.

        Returns:
            Whether it succeeded.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                call()
            except StoreUnavailable as error:
                if self._clock() + pause > until or self._stop.wait(pause):
                    _log.error("the store is unavailable, giving up: %s", error)
                    return False
                _log.warning("the store is unavailable, trying again: %s", error)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return True


def entry_of(message: EncodeMessage, card: EncoderCard, encoded: Encoded) -> Entry:
    """Build the index entry of an embedding.

    Raises:
        ValueError: rows, plan and grid disagree.
    """
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


def _timings(ticket: Ticket, encoded: Encoded, writing: float) -> dict[str, float]:
    queued = max(0.0, ticket.begun_at - ticket.message.enqueued_at)
    return {**ticket.message.timings, ENCODE_QUEUE: queued, **encoded.timings, WRITE: writing}


def _encoded_result(ticket: Ticket, encoded: Encoded, timings: Mapping[str, float]) -> TaskResult:
    summary: dict[str, str | int | float] = {
        "key": ticket.message.wanted.key,
        "encoder": ticket.message.wanted.encoder,
        "tokens": encoded.plan.tokens,
        "batch": encoded.batch_size,
    }
    if ticket.reuse is not None:
        summary["reused"] = len(ticket.reuse.cached)
    summary |= {f"{name}_s": round(seconds, 6) for name, seconds in timings.items()}
    return TaskResult(ticket.id, TaskStatus.ENCODED, summary)
