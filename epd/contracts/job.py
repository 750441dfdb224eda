"""Jobs, items and parts: their ids, their states and the records that the store keeps.

A job has items. An item has one main part (its own media type) and, for a video whose audio is encoded
too, a second part for the audio track. Workers finish parts; the states of items and jobs are derived from
the states of their parts and never stored, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.errors import EpdError
from epd.contracts.media import Item, Modality
from epd.contracts.wire import Wire


class Priority(StrEnum):
    """Interactive work is served before bulk work, but bulk work never starves."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class State(StrEnum):
    """The state of a part, an item or a job. Only items and jobs may be ``partial``."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


FINAL_STATES = frozenset({State.DONE, State.PARTIAL, State.FAILED, State.CANCELLED, State.EXPIRED})


class Stage(StrEnum):
    """The stage that a running part is in."""

    FETCH = "fetch"
    DECODE = "decode"
    ENCODE = "encode"


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """A part of a job: the item's index and the track. Its text form is ``"3.audio"``."""

    index: int
    track: Modality

    def __str__(self) -> str:
        return f"{self.index}.{self.track}"

    @classmethod
    def parse(cls, text: str) -> PartId:
        """The inverse of ``str``; raises ``ValueError``."""
        index, _, track = text.partition(".")
        return cls(int(index), Modality(track))


class ErrorInfo(Wire):
    """An error as the caller gets it."""

    code: str
    message: str
    retryable: bool
    status: int = 500

    @classmethod
    def of(cls, error: EpdError) -> ErrorInfo:
        """What the caller gets of an error."""
        return cls(code=error.code, message=error.message, retryable=error.retryable, status=error.status)


class SegmentUse(Wire):
    """How many segments of a part (windows of audio, groups of frames) were cached, and how many encoded."""

    cached: int = Field(ge=0)
    encoded: int = Field(ge=0)


class PartRecord(Wire):
    """The state of a part. ``timings`` are seconds per stage; ``ref`` and ``metadata`` are set when done.

    ``segments`` is set for the part whose encode made the embedding, where its media has segments.
    """

    state: State = State.QUEUED
    stage: Stage | None = None
    cached: bool = False
    ref: EmbeddingRef | None = None
    metadata: Metadata | None = None
    error: ErrorInfo | None = None
    timings: dict[str, float] = Field(default_factory=dict)
    segments: SegmentUse | None = None

    @classmethod
    def done(
        cls,
        entry: Entry,
        timings: Mapping[str, float] | None = None,
        *,
        cached: bool = False,
        segments: SegmentUse | None = None,
    ) -> PartRecord:
        """The final record of a part that has its embedding; ``cached`` when it existed before the job."""
        return cls(
            state=State.DONE,
            cached=cached,
            ref=entry.ref,
            metadata=entry.metadata,
            timings=dict(timings or {}),
            segments=segments,
        )

    @classmethod
    def failed(cls, error: EpdError) -> PartRecord:
        """The final record of a part that failed."""
        return cls(state=State.FAILED, error=ErrorInfo.of(error))


class JobRecord(Wire):
    """A job as admitted. ``created`` and ``deadline`` are Unix seconds; ``ids`` are the caller's item ids."""

    job_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    model: str
    created: float
    deadline: float
    priority: Priority = Priority.INTERACTIVE
    items: tuple[Item, ...]
    ids: tuple[str | None, ...]


class JobView(Wire):
    """A job with the records of its parts; the keys are part ids as text."""

    record: JobRecord
    parts: dict[str, PartRecord]

    def item_state(self, index: int) -> State:
        """The state of an item: that of its main part, or ``partial`` when only a track failed."""
        return state_of_parts([record for _, record in self.parts_of(index)])

    def parts_of(self, index: int) -> list[tuple[PartId, PartRecord]]:
        """The parts of one item, the main part first."""
        own = self.record.items[index].modality
        ids = [PartId(index, track) for track in (own, *(other for other in Modality if other is not own))]
        return [(part, self.parts[str(part)]) for part in ids if str(part) in self.parts]

    @property
    def state(self) -> State:
        """The state of the job, derived from its items."""
        return combined_state(self.item_state(index) for index in range(len(self.record.items)))


def state_of_parts(parts: Sequence[PartRecord]) -> State:
    """The state of an item with these parts, the main part first."""
    states = [part.state for part in parts]
    if any(state not in FINAL_STATES for state in states):
        return State.QUEUED if all(state is State.QUEUED for state in states) else State.RUNNING
    return states[0] if states[0] is not State.DONE else combined_state(states)


def combined_state(states: Iterable[State]) -> State:
    """One state for several: unfinished wins over final, equal states stay, and a mixture is ``partial``."""
    found = set(states)
    if found <= {State.QUEUED}:
        return State.QUEUED
    if found - FINAL_STATES:
        return State.RUNNING
    if len(found) == 1:
        return found.pop()
    if State.DONE in found or State.PARTIAL in found:
        return State.PARTIAL
    for state in (State.CANCELLED, State.EXPIRED):
        if state in found:
            return state
    return State.FAILED


class Notice(Wire):
    """A change of a part's state, as published to the processes that watch its job."""

    job_id: str
    part: str
    state: State
    stage: Stage | None = None
    job_final: bool = False
