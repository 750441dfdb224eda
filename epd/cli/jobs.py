"""Many items as a bounded number of jobs, answered in the order of the items."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from epd.client import Client
from epd.contracts.answers import ItemAnswer, JobAnswer
from epd.contracts.errors import CallerFault
from epd.contracts.job import FINAL_STATES, ErrorInfo, Priority, State
from epd.contracts.media import Modality

_ITEMS_A_JOB = 8
_JOBS_AT_ONCE = 4
_POLL_PERIOD = 0.1


class RefusedItem(ItemAnswer):
    """An item that was refused before it became part of a job; its ``type`` means nothing."""


@dataclass(slots=True)
class _Running:
    names: list[str]
    job: JobAnswer

    def final_items(self) -> int:
        return sum(item.state in FINAL_STATES for item in self.job.items)


def encode_all(
    client: Client,
    names: list[str],
    *,
    type_: Modality | None,
    model: str | None,
    priority: Priority,
    on_done: Callable[[int], None],
) -> Iterator[tuple[str, ItemAnswer]]:
    """Encode paths and URLs; yields (name, answer) in order, and tells how many are final so far.

    It waits no longer than the jobs live: each ends at its deadline, or is ``NotFound`` some time after it.
    """
    waiting = iter(names)
    running: deque[_Running] = deque()
    finished = 0
    while True:
        while len(running) < _JOBS_AT_ONCE and (group := list(islice(waiting, _ITEMS_A_JOB))):
            running.append(_submit(client, group, type_, model, priority))
        if not running:
            return
        on_done(finished + sum(each.final_items() for each in running))
        first = running[0]
        if first.job.state not in FINAL_STATES:
            time.sleep(_POLL_PERIOD)
            _refresh(client, running)
            continue
        running.popleft()
        finished += len(first.names)
        yield from zip(first.names, first.job.items, strict=True)


def _refresh(client: Client, running: deque[_Running]) -> None:
    for each in running:
        if each.job.state not in FINAL_STATES:
            each.job = client.job(each.job.job_id)


def _submit(
    client: Client, group: list[str], type_: Modality | None, model: str | None, priority: Priority
) -> _Running:
    try:
        return _Running(group, client.submit(group, type=type_, model=model, priority=priority))
    except CallerFault as error:
        if len(group) == 1:
            return _Running(group, _refused(error))
        # One bad name refuses the whole request, so find it by asking one at a time.
        singles = [_submit(client, [name], type_, model, priority) for name in group]
        return _Running(group, _joined(client, singles))


def _joined(client: Client, singles: list[_Running]) -> JobAnswer:
    """Wait for single-item jobs and give their items as those of one final job."""
    for each in singles:
        if each.job.state not in FINAL_STATES:
            each.job = client.wait(each.job.job_id)
    items = [each.job.items[0].model_copy(update={"index": i}) for i, each in enumerate(singles)]
    return singles[0].job.model_copy(update={"items": tuple(items), "state": State.PARTIAL})


def _refused(error: CallerFault) -> JobAnswer:
    item = RefusedItem(index=0, type=Modality.IMAGE, state=State.FAILED, error=ErrorInfo.of(error))
    return JobAnswer(job_id="", model="", state=State.FAILED, items=(item,))
