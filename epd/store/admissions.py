"""Admission: the bound on the items and bytes of all jobs in flight (``lua/load.lua``)."""

from __future__ import annotations

from dataclasses import dataclass

from epd.contracts.job import Priority
from epd.store.connection import Connection
from epd.store.keys import milliseconds
from epd.store.scripts import Script

#: The share of the bound that bulk jobs may fill together, so that there is always room for interactive ones.
BULK_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Load:
    """Items in flight, and the bytes of their media as far as these are known."""

    items: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class AdmissionBound:
    """The most items and bytes that all jobs may hold together. Bulk jobs may hold a share of it."""

    items: int
    nbytes: int

    def of(self, priority: Priority) -> Load:
        """The bound that counts for jobs of one priority. Interactive jobs may fill all of it."""
        share = BULK_SHARE if priority is Priority.BULK else 1.0
        return Load(max(1, int(self.items * share)), max(1, int(self.nbytes * share)))


class Admissions:
    """Holds the items and bytes of a job from its admission until its parts are final.

    The script that makes a part final also gives back its share. In case a process died first, each admission
    checks the jobs whose last check was half a minute ago: one that is gone, final or past its end holds
    nothing any more.
    """

    def __init__(self, connection: Connection, bound: AdmissionBound) -> None:
        self._connection = connection
        self._bound = bound

    def admit(self, job_id: str, load: Load, *, priority: Priority, until: float) -> bool:
        """Hold the items and bytes of a job, at most until ``until`` in Unix seconds.

        Returns:
            False if they do not fit. A job that was admitted before gets True and holds no more than it did.
        """
        answer = self._run(job_id, priority, load, milliseconds(until))
        return bool(answer[0])

    def release(self, job_id: str) -> None:
        """Give back everything that a job holds, as when it could not be started."""
        self._connection.run(Script.LOAD_RELEASE, [], (job_id,))

    def held(self, priority: Priority | None = None) -> Load:
        """Return what all jobs hold together, or those of one priority."""
        _, items, nbytes, bulk_items, bulk_bytes = self._run("", Priority.INTERACTIVE, Load(0, 0), 1)
        if priority is None:
            return Load(items, nbytes)
        bulk = Load(bulk_items, bulk_bytes)
        return bulk if priority is Priority.BULK else Load(items - bulk.items, nbytes - bulk.nbytes)

    def _run(self, job_id: str, priority: Priority, load: Load, until_ms: int) -> list[int]:
        """Run ``load_admit``. Its result: admitted (0 or 1), then items and bytes of all and of bulk jobs."""
        every, bulk = self._bound.of(Priority.INTERACTIVE), self._bound.of(Priority.BULK)
        args = (
            job_id, priority.value, load.items, load.nbytes, until_ms,
            every.items, every.nbytes, bulk.items, bulk.nbytes,
        )  # fmt: skip
        return [int(value) for value in self._connection.run(Script.LOAD_ADMIT, [], args)]
