"""What admitted jobs hold, on a server: one script a change, and every final part gives its share back."""

from __future__ import annotations

from epd.contracts.job import Priority
from epd.store.clock import milliseconds
from epd.store.redis.connection import Connection
from epd.store.redis.scripts import Script
from epd.store.values import AdmissionBound, Load


class Admissions:
    """The bound on what is in flight: a job holds its items from admission until its parts are final.

    Whatever ends a part gives its share back in the same step. What a dead process leaves is not held
    for long: a job that is gone, final or past its time is found within half a minute.
    """

    def __init__(self, connection: Connection, bound: AdmissionBound) -> None:
        """``bound`` is that of all jobs together."""
        self._connection = connection
        self._bound = bound

    def admit(self, job_id: str, ask: Load, *, priority: Priority, until: float) -> bool:
        """Hold a job's items and bytes until Unix time ``until`` at most; False when they do not fit.

        A job that asks twice is held once.
        """
        answer = self._run(job_id, priority, ask, milliseconds(until))
        return bool(answer[0])

    def release(self, job_id: str) -> None:
        """Hold nothing for a job that was not started after all."""
        self._connection.run(Script.LOAD_RELEASE, [], (job_id,))

    def held(self, priority: Priority | None = None) -> Load:
        """What all jobs hold, or those of one priority."""
        _, items, nbytes, bulk_items, bulk_bytes = self._run("", Priority.INTERACTIVE, Load(0, 0), 1)
        if priority is None:
            return Load(items, nbytes)
        bulk = Load(bulk_items, bulk_bytes)
        return bulk if priority is Priority.BULK else Load(items - bulk.items, nbytes - bulk.nbytes)

    def _run(self, job_id: str, priority: Priority, ask: Load, until_ms: int) -> list[int]:
        most, bulk = self._bound.of(Priority.INTERACTIVE), self._bound.of(Priority.BULK)
        args = (
            job_id, priority.value, ask.items, ask.nbytes, until_ms,
            most.items, most.nbytes, bulk.items, bulk.nbytes,
        )  # fmt: skip
        return [int(value) for value in self._connection.run(Script.LOAD_ADMIT, [], args)]
