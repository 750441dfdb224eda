"""The events of one job: first the states of its items, then each change, until the job is final."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator

from api.jobs.actions import POLL_SECONDS, is_final, read_job
from api.jobs.completions import Subscription
from api.services import Services
from epd.contracts.errors import NotFound, StoreUnavailable
from epd.contracts.job import FINAL_STATES, JobView, Notice, PartRecord, Stage, State
from epd.contracts.responses import EventAnswer

#: Seconds between two reads of a job at least: one with many items changes often.
_READ_GAP = 0.05
#: Seconds past a job's deadline after which its events end, whatever the store says.
_GRACE = 60.0

_STAGES: dict[Stage | None, int] = {None: 1, Stage.FETCH: 1, Stage.DECODE: 2, Stage.ENCODE: 3}


async def job_events(
    services: Services, job_id: str, subscription: Subscription
) -> AsyncIterator[EventAnswer]:
    """Events of a job that this process watches.

    The subscription precedes the first read, so no change is missed. The caller ends it, since a stream that
    is aborted never resumes this generator. A store that becomes unavailable delays events, and ends them
    some time after the job's deadline.
    """
    view, read_at = await read_job(services, job_id), time.monotonic()
    tracker = ItemStates(view)
    for event in tracker.changes():
        yield event
    while not tracker.final:
        notices = await subscription.wait(POLL_SECONDS)
        tracker.apply(notice for notice in notices if notice.state is State.RUNNING)
        for event in tracker.changes():
            yield event
        if subscription.missed or not notices or any(n.state in FINAL_STATES for n in notices):
            await asyncio.sleep(read_at + _READ_GAP - time.monotonic())
            subscription.missed = False
            read_at = time.monotonic()
            try:
                tracker.replace(await read_job(services, job_id))
            except NotFound:
                return
            except StoreUnavailable:
                subscription.missed = True
                if time.time() > view.record.deadline + _GRACE:
                    return
                await asyncio.sleep(POLL_SECONDS)
        for event in tracker.changes():
            yield event


class ItemStates:
    """The states of a job's items, and which of them have not been sent yet.

    Running parts are followed through notices alone. A final part is read from the store, because only the
    store knows whether the item has another part (a video's audio).
    """

    def __init__(self, view: JobView) -> None:
        self._view = view
        self._sent: dict[int, State] = {}

    @property
    def final(self) -> bool:
        """Whether the job is final, as far as is known."""
        return is_final(self._view)

    def replace(self, view: JobView) -> None:
        """Set the job as it was read from the store."""
        self._view = view

    def apply(self, notices: Iterable[Notice]) -> None:
        """Apply notices; one that is older than what is known changes nothing."""
        parts = dict(self._view.parts)
        for notice in notices:
            known = parts.get(notice.part, PartRecord())
            if _rank(notice.state, notice.stage) > _rank(known.state, known.stage):
                parts[notice.part] = known.model_copy(update={"state": notice.state, "stage": notice.stage})
        self._view = self._view.model_copy(update={"parts": parts})

    def changes(self) -> Iterator[EventAnswer]:
        """One event for each item whose state differs from the one that was sent last.

        Only the last event carries a final job state, so that a reader may stop at the first one.
        """
        states = {item.index: self._view.item_state(item.index) for item in self._view.record.items}
        changed = [index for index, state in states.items() if self._sent.get(index) is not state]
        for index in changed:
            more = index != changed[-1]
            yield self._event(index, states[index], State.RUNNING if more and self.final else None)
        self._sent = states

    def _event(self, index: int, state: State, job_state: State | None) -> EventAnswer:
        stage = self._view.parts_of(index)[0][1].stage
        return EventAnswer(
            job_id=self._view.record.job_id,
            index=index,
            type=self._view.record.items[index].modality,
            state=state,
            stage=stage if state is State.RUNNING else None,
            job_state=job_state or self._view.state,
        )


def _rank(state: State, stage: Stage | None) -> int:
    if state in FINAL_STATES:
        return 4
    return 0 if state is State.QUEUED else _STAGES[stage]
