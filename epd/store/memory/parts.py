"""The rules of job parts in memory: what ``lua/lib_job.lua`` is on the server. Callers hold the lock."""

from __future__ import annotations

import time

from epd.contracts.job import FINAL_STATES, Notice, PartRecord, Stage, State
from epd.store.memory.admissions import settle_load
from epd.store.memory.state import JobState, MemoryState


def is_final(job: JobState) -> bool:
    """Whether every part is."""
    return all(part.state in FINAL_STATES for part in job.parts.values())


def is_wanted(state: MemoryState, job_id: str, part: str) -> bool:
    """Whether the job is there and open, and the part not final."""
    job = state.job(job_id)
    if job is None or job.closed:
        return False
    return part not in job.parts or job.parts[part].state not in FINAL_STATES


def announce(
    state: MemoryState,
    job: JobState,
    part: str,
    what: State,
    *,
    stage: Stage | None = None,
    job_final: bool = False,
) -> None:
    """Publish a part's change to the job's watchers."""
    notice = Notice(job_id=job.record.job_id, part=part, state=what, stage=stage, job_final=job_final)
    state.publish(job, notice)


def finish_part(state: MemoryState, job_id: str, part: str, record: PartRecord, job_ttl: float) -> bool:
    """Make a part final; False when it was, or is not there. The first final record wins."""
    job = state.job(job_id)
    if job is None or part not in job.parts or job.parts[part].state in FINAL_STATES:
        return False
    job.parts[part] = record
    settle_load(state, job_id, sum(one.state not in FINAL_STATES for one in job.parts.values()))
    over = is_final(job)
    if over:
        job.ends_at = time.time() + job_ttl
    announce(state, job, part, record.state, job_final=over)
    return True
