"""Jobs, one hash each (``lua/jobs.lua``).

The state of a job is never stored; it follows from its parts (``JobView``). The fields of a job's hash:

field         value
record        JobRecord JSON
part:{id}     PartRecord JSON, one per part ("3.audio")
final:{id}    "1" once that part is final; set first, so the first final record wins
open          number of parts that are not final; at zero the hash gets ``job_ttl``
closed        the state that ``close`` gave, for people who look; no part is added from then on
watchers      JSON list of the watchers to notify of each change
waiter        the watcher to notify of the end of the job alone
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from epd.contracts.errors import Internal
from epd.contracts.job import FINAL_STATES, JobRecord, JobView, PartId, PartRecord, Stage, State
from epd.store import keys
from epd.store.admissions import AdmissionBound, Load, admit_command, is_admitted
from epd.store.connection import Connection, chunks, read_record, script_command
from epd.store.keys import milliseconds
from epd.store.loop_connection import AsyncConnection
from epd.store.scripts import Argument, Command, Script
from epd.store.values import MAX_WATCHERS

#: Shown for a part whose record was written by a version that this one cannot read.
UNREADABLE = PartRecord.failed(Internal("the record of this part cannot be read"))
_PART = "part:"
#: The record of a running part, by stage.
_RUNNING = {stage: PartRecord(state=State.RUNNING, stage=stage).to_json() for stage in Stage}
#: Fields of a job up to which it is parsed on the event loop.
_FEW_FIELDS = 200


class Jobs:
    """Job records and their parts. Every change is one script, and a part becomes final only once."""

    def __init__(self, connection: Connection, *, job_ttl: float) -> None:
        """Keep finished jobs for ``job_ttl`` seconds."""
        self._connection = connection
        self._job_ttl = job_ttl

    def create(
        self,
        record: JobRecord,
        parts: dict[PartId, PartRecord],
        watcher: str | None = None,
        *,
        hits: int = 0,
    ) -> None:
        """Write a job. A second call for the same id changes nothing.

        Args:
            record: The job.
            parts: Its parts; those from the cache are final already.
            watcher: A process to notify of changes.
            hits: Number of parts that were found in L1, to be counted in the totals of the cache.
        """
        job = create_command(record, _texts(parts), job_ttl=self._job_ttl, watcher=watcher)
        self._connection.pipe([job, count_hits_command(hits)] if hits else [job])

    def view(self, job_id: str) -> JobView | None:
        """Return the present state of a job; None if there is no such job, or its record is unreadable."""
        return _view(self._connection.call("HGETALL", keys.job(job_id)))

    def open_parts(self, job_ids: Sequence[str]) -> list[int | None]:
        """Return for each job how many parts are not final; None if there is no such job. One round trip."""
        commands = [("HGET", keys.job(job_id), "open") for job_id in job_ids]
        answers = self._connection.pipe(commands) if commands else []
        return [None if answer is None else max(0, int(answer)) for answer in answers]

    def watch(self, job_id: str, watcher: str) -> bool:
        """Notify a watcher of changes, too. False if there is no such job.

        A job has at most ``MAX_WATCHERS``; one more replaces the oldest.
        """
        return self._run(Script.JOB_WATCH, job_id, watcher, MAX_WATCHERS)

    def advance(self, job_id: str, part: PartId, stage: Stage) -> bool:
        """Mark a part as running at a stage. False if it is final or its job is gone: drop its work then."""
        return self.advance_all([(job_id, part)], stage)[0]

    def advance_all(self, parts: Sequence[tuple[str, PartId]], stage: Stage) -> list[bool]:
        """Do the same for parts of many jobs, in order. One round trip."""
        commands = [advance_command(chunk, stage) for chunk in chunks(parts)]
        answers = self._connection.pipe(commands) if commands else []
        return [bool(answer) for answer in chain.from_iterable(answers)]

    def add_part(self, job_id: str, part: PartId) -> bool:
        """Add a part (the audio of a video), unless the job has it. False if the job is gone or closed."""
        return self._run(Script.JOB_ADD_PART, job_id, job_id, str(part), PartRecord().to_json())

    def finish(self, job_id: str, part: PartId, record: PartRecord) -> bool:
        """Make a part final. False if it was final before, or the job is gone."""
        return self._run(
            Script.JOB_FINISH, job_id, job_id, str(part), record.state, record.to_json(), self._ttl_ms
        )

    def close(self, job_id: str, record: PartRecord) -> bool:
        """Give all parts that are not final this record (cancelled or expired). False if there is no job."""
        return self._run(Script.JOB_CLOSE, job_id, job_id, record.state, record.to_json(), self._ttl_ms)

    @property
    def _ttl_ms(self) -> int:
        return milliseconds(self._job_ttl)

    def _run(self, script: Script, job_id: str, *args: Argument) -> bool:
        return bool(self._connection.run(script, [keys.job(job_id)], args))


def advance_command(parts: Sequence[tuple[str, PartId]], stage: Stage) -> Command:
    """The command that marks parts as running at a stage. Its answer is 1 for each, or 0 as ``advance``."""
    named = ((job_id, str(part)) for job_id, part in parts)
    return script_command(Script.JOB_ADVANCE, [], (_RUNNING[stage], stage, *chain.from_iterable(named)))


class AsyncJobs:
    """Jobs for an event loop, which no call blocks: they are started and read there."""

    def __init__(self, connection: AsyncConnection, bound: AdmissionBound, *, job_ttl: float) -> None:
        """Borrow a connection; finished jobs are kept for ``job_ttl`` seconds."""
        self._connection = connection
        self._bound = bound
        self._job_ttl = job_ttl

    async def start(
        self,
        record: JobRecord,
        parts: dict[PartId, PartRecord],
        *,
        load: Load,
        until: float,
        watcher: str | None = None,
        waiter: str | None = None,
        hits: int = 0,
    ) -> bool:
        """Admit a job (see ``Admissions.admit``) and write it (see ``Jobs.create``), in one round trip.

        ``waiter`` is a process to notify of the end of the job alone.

        Returns:
            False if its load does not fit; nothing is written then.
        """
        admit = admit_command(self._bound, record.job_id, load, priority=record.priority, until=until)
        create = create_command(
            record,
            _texts(parts),
            job_ttl=self._job_ttl,
            watcher=watcher,
            waiter=waiter,
            only_admitted=True,
        )
        admission, created = await self._connection.pipe([admit, create])
        if not is_admitted(admission):
            return False
        # A server that had lost the first script alone runs them in the wrong order.
        again = [create] if int(created) < 0 else []
        if hits or again:
            await self._connection.pipe([*again, *([count_hits_command(hits)] if hits else [])])
        return True

    async def view(self, job_id: str, record: JobRecord | None = None) -> JobView | None:
        """Return the present state of a job, as ``Jobs.view`` does. A large job is parsed in a thread.

        The record, which never changes, is not parsed again where the caller has it.
        """
        answer = await self._connection.call("HGETALL", keys.job(job_id))
        fields = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
        if len(fields) > _FEW_FIELDS:
            return await asyncio.to_thread(_view, fields, record)
        return _view(fields, record)


def _view(fields: dict[str, str], known: JobRecord | None = None) -> JobView | None:
    text = fields.get("record")
    record = known if known is not None and text is not None else read_record(JobRecord, text)
    if record is None:
        return None
    parts: dict[str, PartRecord] = {}
    for name, text in fields.items():
        if name.startswith(_PART):
            parts[name.removeprefix(_PART)] = read_record(PartRecord, text) or UNREADABLE
    return JobView(record=record, parts=parts)


def _texts(parts: dict[PartId, PartRecord]) -> Iterator[tuple[PartId, str, bool]]:
    """What ``create_command`` takes of parts."""
    for part_id, part in parts.items():
        yield part_id, part.to_json(), part.state in FINAL_STATES


def create_command(
    record: JobRecord,
    parts: Iterable[tuple[PartId, str, bool]],
    *,
    job_ttl: float,
    watcher: str | None = None,
    waiter: str | None = None,
    only_admitted: bool = False,
) -> Command:
    """The command that writes a job, or with ``only_admitted`` only one that holds load.

    ``parts`` are PartRecord JSON, and whether each is final.
    """
    fields: list[Argument] = ["record", record.to_json()]
    if watcher is not None:
        fields += ("watchers", json.dumps([watcher]))
    if waiter is not None:
        fields += ("waiter", waiter)
    open_parts = 0
    for part_id, text, final in parts:
        name = str(part_id)
        fields += (_PART + name, text)
        if final:
            fields += ("final:" + name, "1")
        else:
            open_parts += 1
    end = milliseconds(record.deadline + job_ttl)
    args = (end, milliseconds(job_ttl), open_parts, record.job_id if only_admitted else "", *fields)
    return script_command(Script.JOB_CREATE, [keys.job(record.job_id)], args)


def count_hits_command(hits: int) -> Command:
    """The command that adds the cached parts of a new job to the totals of L1."""
    return ("HINCRBY", keys.CACHE_TOTALS, "hits_l1", hits)
