"""Jobs in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from epd.contracts.job import FINAL_STATES, JobRecord, JobView, PartId, PartRecord, Stage, State
from epd.store.memory.parts import announce, finish_part, is_final
from epd.store.memory.state import JobState, MemoryState
from epd.store.values import MAX_WATCHERS


class MemoryJobs:
    """``Jobs`` over shared memory state."""

    def __init__(self, state: MemoryState, *, job_ttl: float) -> None:
        """Keep finished jobs ``job_ttl`` seconds."""
        self._state = state
        self._job_ttl = job_ttl

    def create(self, record: JobRecord, parts: dict[PartId, PartRecord], watcher: str | None = None) -> None:
        """Write a job with its parts; a second call for the same id changes nothing."""
        with self._state.lock:
            if self._state.job(record.job_id) is not None:
                return
            self._forget_old()
            job = JobState(
                record, {str(part): state for part, state in parts.items()}, record.deadline + self._job_ttl
            )
            if watcher is not None:
                job.watchers.append(watcher)
            if is_final(job):
                job.ends_at = time.time() + self._job_ttl
            self._state.jobs[record.job_id] = job

    def view(self, job_id: str) -> JobView | None:
        """The job as it stands, or None."""
        with self._state.lock:
            job = self._state.job(job_id)
            if job is None:
                return None
            return JobView(record=job.record, parts=dict(job.parts))

    def open_parts(self, job_ids: Sequence[str]) -> list[int | None]:
        """How many parts of each job are not final; None: no such job."""
        with self._state.lock:
            jobs = [self._state.job(job_id) for job_id in job_ids]
            return [
                sum(part.state not in FINAL_STATES for part in job.parts.values()) if job else None
                for job in jobs
            ]

    def watch(self, job_id: str, watcher: str) -> bool:
        """Publish changes of a job to a watcher too."""
        with self._state.lock:
            job = self._state.job(job_id)
            if job is None:
                return False
            if watcher not in job.watchers:
                job.watchers = [*job.watchers, watcher][-MAX_WATCHERS:]
            return True

    def advance(self, job_id: str, part: PartId, stage: Stage) -> bool:
        """Mark a part running at a stage; False means drop the work."""
        record = PartRecord(state=State.RUNNING, stage=stage)
        with self._state.lock:
            job = self._state.job(job_id)
            before = job.parts.get(str(part)) if job is not None else None
            if job is None or before is None or before.state in FINAL_STATES:
                return False
            if before != record:
                job.parts[str(part)] = record
                announce(self._state, job, str(part), State.RUNNING, stage=stage)
            return True

    def advance_all(self, parts: Sequence[tuple[str, PartId]], stage: Stage) -> list[bool]:
        """Mark many parts running at a stage, each for itself."""
        return [self.advance(job_id, part, stage) for job_id, part in parts]

    def add_part(self, job_id: str, part: PartId) -> bool:
        """Add a part; False when the job is gone or closed."""
        with self._state.lock:
            job = self._state.job(job_id)
            if job is None or (job.closed and str(part) not in job.parts):
                return False
            if str(part) not in job.parts:
                job.parts[str(part)] = PartRecord()
                announce(self._state, job, str(part), State.QUEUED)
            return True

    def finish(self, job_id: str, part: PartId, record: PartRecord) -> bool:
        """Make a part final; False when it was, or the job is gone."""
        with self._state.lock:
            return finish_part(self._state, job_id, str(part), record, self._job_ttl)

    def close(self, job_id: str, record: PartRecord) -> bool:
        """Make every open part this record."""
        with self._state.lock:
            job = self._state.job(job_id)
            if job is None:
                return False
            if not is_final(job):
                job.closed = True
            for part in sorted(job.parts):
                finish_part(self._state, job_id, part, record, self._job_ttl)
            return True

    def _forget_old(self) -> None:
        for job_id in list(self._state.jobs):
            self._state.job(job_id)
