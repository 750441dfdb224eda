"""Jobs, items and parts: identifiers, states and the records that the store keeps of them.

A job has items. An item has one main part (its own media type) and, for a video whose sound is encoded
too, a second part for the audio track. Parts are what workers finish; the states of items and jobs are
derived from the states of their parts, never stored, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.errors import EpdError
from epd.contracts.media import Item, Modality
from epd.contracts.wire import Wire


class Priority(StrEnum):
    """Interactive work is served before bulk work; bulk never starves."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class State(StrEnum):
    """The state of a part, an item or a job (a job or an item may also be ``partial``)."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


FINAL_STATES = frozenset({State.DONE, State.PARTIAL, State.FAILED, State.CANCELLED, State.EXPIRED})


class Stage(StrEnum):
    """Where a running part is."""

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
    """An error as it travels to the caller."""

    code: str
    message: str
    retryable: bool
    status: int = 500

    @classmethod
    def of(cls, error: EpdError) -> ErrorInfo:
        """The facts of an error of the tree."""
        return cls(code=error.code, message=error.message, retryable=error.retryable, status=error.status)


class SegmentUse(Wire):
    """Segments of a part (windows of sound, groups of frames): those that were there, and those encoded."""

    cached: int = Field(ge=0)
    encoded: int = Field(ge=0)


class PartRecord(Wire):
    """A part's state. ``timings`` are seconds per stage; ``ref`` and ``metadata`` are set when done.

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
        """The final record of a part that has its embedding; ``cached``: it was there already."""
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
        """The final record of a part that failed with an error of the tree."""
        return cls(state=State.FAILED, error=ErrorInfo.of(error))


class JobRecord(Wire):
    """A job as admitted. ``created`` and ``deadline`` are Unix times in seconds; ``ids`` are the caller's."""

    job_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    model: str
    created: float
    deadline: float
    priority: Priority = Priority.INTERACTIVE
    items: tuple[Item, ...]
    ids: tuple[str | None, ...]


class JobView(Wire):
    """A job with its parts' records by part id text."""

    record: JobRecord
    parts: dict[str, PartRecord]

    def item_state(self, index: int) -> State:
        """An item's state: that of its main part, lowered to ``partial`` where only a track failed."""
        main = self.parts[str(PartId(index, self.record.items[index].modality))].state
        states = [record.state for _, record in self.parts_of(index)]
        if any(state not in FINAL_STATES for state in states):
            queued = all(state is State.QUEUED for state in states)
            return State.QUEUED if queued else State.RUNNING
        return combined_state([main]) if main is not State.DONE else combined_state(states)

    def parts_of(self, index: int) -> list[tuple[PartId, PartRecord]]:
        """The parts of one item, the main part first."""
        own = self.record.items[index].modality
        ids = [PartId(index, track) for track in (own, *(other for other in Modality if other is not own))]
        return [(part, self.parts[str(part)]) for part in ids if str(part) in self.parts]

    @property
    def state(self) -> State:
        """The job's state, from its items."""
        return combined_state(self.item_state(index) for index in range(len(self.record.items)))


def combined_state(states: Iterable[State]) -> State:
    """The one state of several: unfinished beats final, equal stays, and a mixture is ``partial``."""
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
    """A part's change of state, as published to the processes that watch its job."""

    job_id: str
    part: str
    state: State
    stage: Stage | None = None
    job_final: bool = False
