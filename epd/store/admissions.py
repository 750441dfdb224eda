"""Admission: the bound on the items and bytes of all jobs in flight (``lua/load.lua``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epd.contracts.job import Priority
from epd.store.connection import Connection, script_command
from epd.store.keys import milliseconds
from epd.store.scripts import Command, Script

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
        command = admit_command(self._bound, job_id, load, priority=priority, until=until)
        return is_admitted(self._connection.pipe([command])[0])

    def release(self, job_id: str) -> None:
        """Give back everything that a job holds, as when it could not be started."""
        self._connection.run(Script.LOAD_RELEASE, [], (job_id,))

    def held(self, priority: Priority | None = None) -> Load:
        """Return what all jobs hold together, or those of one priority."""
        command = admit_command(self._bound, "", Load(0, 0), priority=Priority.INTERACTIVE, until=0)
        _, items, nbytes, bulk_items, bulk_bytes = map(int, self._connection.pipe([command])[0])
        if priority is None:
            return Load(items, nbytes)
        bulk = Load(bulk_items, bulk_bytes)
        return bulk if priority is Priority.BULK else Load(items - bulk.items, nbytes - bulk.nbytes)


def admit_command(
    bound: AdmissionBound, job_id: str, load: Load, *, priority: Priority, until: float
) -> Command:
    """The command that admits a job (``load_admit``); with no items it only reads what is held.

    Its result is whether the job is admitted, then items and bytes of all jobs and of bulk jobs.
    """
    every, bulk = bound.of(Priority.INTERACTIVE), bound.of(Priority.BULK)
    args = (
        job_id, priority.value, load.items, load.nbytes, milliseconds(until),
        every.items, every.nbytes, bulk.items, bulk.nbytes,
    )  # fmt: skip
    return script_command(Script.LOAD_ADMIT, [], args)


def is_admitted(answer: Sequence[Any]) -> bool:
    """Whether the answer to ``admit_command`` admits the job."""
    return bool(int(answer[0]))
