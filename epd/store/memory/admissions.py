"""What admitted jobs hold, in one process: what ``lua/lib_load.lua`` is on the server."""

from __future__ import annotations

import time

from epd.contracts.job import FINAL_STATES, Priority
from epd.store.memory.state import HeldLoad, MemoryState
from epd.store.values import AdmissionBound, Load

#: Seconds after which a job is looked at again.
LOOK_AGAIN = 30.0


class MemoryAdmissions:
    """``Admissions`` over shared memory state."""

    def __init__(self, state: MemoryState, bound: AdmissionBound) -> None:
        """``bound`` is that of all jobs together."""
        self._state = state
        self._bound = bound

    def admit(self, job_id: str, ask: Load, *, priority: Priority, until: float) -> bool:
        """Hold a job's items and bytes; False when they do not fit. The same job twice is held once."""
        with self._state.lock:
            self._check()
            if ask.items == 0 or job_id in self._state.loads:
                return True
            fits_all = self._fits(ask, self.held(), Priority.INTERACTIVE)
            if not fits_all or (
                priority is Priority.BULK and not self._fits(ask, self.held(priority), priority)
            ):
                return False
            check = min(time.time() + LOOK_AGAIN, until)
            self._state.loads[job_id] = HeldLoad(priority, ask.items, ask.nbytes, until, check)
            return True

    def release(self, job_id: str) -> None:
        """Hold nothing for a job any more."""
        with self._state.lock:
            self._state.loads.pop(job_id, None)

    def held(self, priority: Priority | None = None) -> Load:
        """What is held by all, or by bulk jobs, or by the others."""
        with self._state.lock:
            self._check()
            loads = [one for one in self._state.loads.values() if priority in (None, one.priority)]
            return Load(sum(one.items for one in loads), sum(one.nbytes for one in loads))

    def _fits(self, ask: Load, held: Load, priority: Priority) -> bool:
        most = self._bound.of(priority)
        return held.items == 0 or (
            held.items + ask.items <= most.items and held.nbytes + ask.nbytes <= most.nbytes
        )

    def _check(self) -> None:
        now = time.time()
        for job_id, load in list(self._state.loads.items()):
            if load.check_at > now:
                continue
            job = self._state.job(job_id)
            left = sum(part.state not in FINAL_STATES for part in job.parts.values()) if job else 0
            settle_load(self._state, job_id, left if load.ends_at > now else 0)
            load.check_at = min(now + LOOK_AGAIN, load.ends_at)


def settle_load(state: MemoryState, job_id: str, left: int) -> None:
    """Let a job hold so many items at most, and their share of its bytes. The caller holds the lock."""
    load = state.loads.get(job_id)
    if load is None or left >= load.items:
        return
    load.nbytes = load.nbytes * left // load.items
    load.items = left
    if left == 0:
        del state.loads[job_id]
