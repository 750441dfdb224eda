"""One item in a stage: finishing its parts, claiming and leaving its flights, and sending it back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from epd.contracts.errors import DeadlineExceeded, EpdError, Internal
from epd.contracts.job import ErrorInfo, PartId, PartRecord, Stage, State
from epd.contracts.media import Item, Modality
from epd.contracts.messages import MAX_ATTEMPTS, DecodeMessage, Envelope, FetchMessage, Wanted
from epd.contracts.timings import DECODE, DECODE_QUEUE, FETCH, FETCH_QUEUE
from epd.store.values import Claim, Waiter
from tasks.flow.context import Context

#: Bounds of the pause before a postponed message is tried again, in seconds.
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 5.0

#: Tries to claim an embedding: after a claim that says "hit" its entry may be evicted before the look-up.
_CLAIM_TRIES = 4


@dataclass(frozen=True, slots=True)
class ItemRun:
    """One item of a message, and the context of the process that works on it.

    A part becomes final once; finishing it again changes nothing. Every method may raise
    ``StoreUnavailable``, and the message may then be run again.
    """

    context: Context
    message: Envelope
    item: Item
    started: float = field(init=False)  #: Unix seconds

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.context.clock())

    @property
    def main_part(self) -> PartId:
        """The part of the item's own media type."""
        return PartId(self.item.index, self.item.modality)

    @property
    def audio_part(self) -> PartId:
        """The part of a video's audio; for an audio item it is the main part."""
        return PartId(self.item.index, Modality.AUDIO)

    @property
    def possible_parts(self) -> tuple[PartId, ...]:
        """Every part that the item may have, the main part first."""
        is_video = self.item.modality is Modality.VIDEO
        return (self.main_part, self.audio_part) if is_video else (self.main_part,)

    @property
    def expired(self) -> bool:
        """Whether the deadline had passed when the work began."""
        return self.started >= self.message.deadline

    def timings(self) -> dict[str, float]:
        """Seconds spent on the item so far, by stage; empty for a waiter that another item serves."""
        return {}

    def queued(self) -> float:
        """Seconds that the message waited in the queue of this stage."""
        return max(0.0, self.started - self.message.enqueued_at)

    def spent(self) -> float:
        """Seconds of work in this stage so far."""
        return self.context.clock() - self.started

    # Parts

    def open_parts(self, stage: Stage) -> frozenset[PartId]:
        """The parts without a result, which are marked as running in this stage. Empty: drop the work."""
        jobs, job_id = self.context.store.jobs, self.message.job_id
        return frozenset(part for part in self.possible_parts if jobs.advance(job_id, part, stage))

    def add_audio_part(self) -> bool:
        """Add the part of a video's audio to the job. False: the job is gone."""
        return self.context.store.jobs.add_part(self.message.job_id, self.audio_part)

    def finish(self, part: PartId, record: PartRecord) -> None:
        """Make a part final, with its timings."""
        self._end(part, record.model_copy(update={"timings": self.timings()}))

    def fail(self, error: EpdError) -> None:
        """Fail every part that is not final yet."""
        for part in self.possible_parts:
            self._end(part, PartRecord.failed(error))

    def expire(self) -> None:
        """End every part that is not final yet because the deadline has passed."""
        error = ErrorInfo.of(DeadlineExceeded("the deadline passed before the item was done"))
        for part in self.possible_parts:
            self._end(part, PartRecord(state=State.EXPIRED, error=error))

    def _end(self, part: PartId, record: PartRecord) -> None:
        self.context.store.jobs.finish(self.message.job_id, part, record)

    # Flights of embeddings

    def claim(self, wanted: Wanted) -> Claim:
        """Claim one embedding for the part of its track.

        Returns:
            ``OWNED``: this item has to make it. ``HIT``: it is cached, and the part is finished.
            ``WAITING``: another item makes it and finishes this part too.
        """
        part = PartId(self.item.index, wanted.track)
        waiter = self.waiter(part)
        for _ in range(_CLAIM_TRIES):
            answer = self.context.store.flights.claim(wanted.key, waiter)
            if answer is not Claim.HIT:
                return answer
            entry = self.context.store.embeddings.lookup([wanted.key], counted=True)[0]
            if entry is not None:
                self.finish(part, PartRecord.done(entry, cached=True))
                return Claim.HIT
        raise Internal(f"embedding {wanted.key} was evicted {_CLAIM_TRIES} times while it was claimed")

    def fail_flight(self, wanted: Wanted, error: EpdError) -> None:
        """Fail a flight for all its waiters, and the item's own part in case it is not one of them."""
        self.context.store.flights.fail(wanted.key, error)
        self._end(PartId(self.item.index, wanted.track), PartRecord.failed(error))

    def withdraw(self, wanted: Iterable[Wanted]) -> None:
        """Leave flights. Where this item is the leader and others wait, one waiter's message is published."""
        for each in wanted:
            part = PartId(self.item.index, each.track)
            successor = self.context.store.flights.withdraw(each.key, self.message.job_id, part)
            if successor is not None:
                now = {"enqueued_at": self.context.clock()}
                self.context.publisher.fetch([FetchMessage.from_json(successor).model_copy(update=now)])

    def waiter(self, part: PartId) -> Waiter:
        """This item as a waiter of a flight. Its message fetches the item again."""
        restart = fetch_message(self.message, self.item, enqueued_at=self.message.enqueued_at)
        return Waiter(job_id=self.message.job_id, part=part, message=restart.to_json())

    # Retries

    def send_back(self) -> bool:
        """Publish the item to ``fetch`` again. False: it had ``MAX_ATTEMPTS`` tries; the caller fails it."""
        attempt = self.message.attempt + 1
        if attempt > MAX_ATTEMPTS:
            return False
        now = self.context.clock()
        again = fetch_message(self.message, self.item, enqueued_at=now, attempt=attempt)
        self.context.publisher.fetch([again])
        return True


@dataclass(frozen=True, slots=True)
class FetchRun(ItemRun):
    """An item in ``fetch``."""

    message: FetchMessage

    def timings(self) -> dict[str, float]:
        """Seconds in the queue and in ``fetch``."""
        return {FETCH_QUEUE: self.queued(), FETCH: self.spent()}


@dataclass(frozen=True, slots=True)
class DecodeRun(ItemRun):
    """The item of a decode message."""

    message: DecodeMessage

    def timings(self) -> dict[str, float]:
        """The seconds of ``fetch``, and those in the queue and in ``decode``."""
        return {**self.message.timings, DECODE_QUEUE: self.queued(), DECODE: self.spent()}

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """The embeddings that the message is for, the main part's first."""
        return tuple(wanted for wanted in (self.message.main, self.message.audio) if wanted is not None)

    def free_source(self) -> None:
        """Remove the source bytes of the message; uploads stay."""
        self.context.store.blobs.free(self.message.blob)


def fetch_message(
    message: Envelope, item: Item, *, enqueued_at: float, attempt: int | None = None
) -> FetchMessage:
    """The fetch message of one item, with the job, deadline and trace of another message."""
    return FetchMessage(
        job_id=message.job_id,
        model=message.model,
        priority=message.priority,
        deadline=message.deadline,
        enqueued_at=enqueued_at,
        attempt=message.attempt if attempt is None else attempt,
        trace=message.trace,
        items=(item,),
    )


def single_items(message: FetchMessage) -> list[FetchMessage]:
    """Split a chunk into one message for each item."""
    return [fetch_message(message, item, enqueued_at=message.enqueued_at) for item in message.items]


def pause_of(message: Envelope, *, now: float) -> float | None:
    """Seconds until a postponed message is tried again: half of the time since it was queued, within bounds.

    The bounds keep a fleet without a GPU worker from running its whole queue every second.

    Args:
        message: the message to postpone.
        now: Unix seconds.

    Returns:
        The pause in seconds; None if the deadline comes first, so that the item has to fail.
    """
    pause = min(max((now - message.enqueued_at) / 2, SHORTEST_PAUSE), LONGEST_PAUSE)
    return pause if now + pause < message.deadline else None
