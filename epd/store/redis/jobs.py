"""Jobs as one hash each. The job's state is never stored: it follows from its parts (``JobView``).

field         value
record        JobRecord JSON
part:{id}     PartRecord JSON, one a part ("3.audio")
final:{id}    "1" once that part is final; set first, so the first final record wins
open          parts that are not final; at zero the hash gets ``job_ttl``
closed        the state that ``close`` gave, for people who look; no part is added from then on
watchers      JSON list of the watchers to publish to
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from epd.contracts.errors import Internal
from epd.contracts.job import FINAL_STATES, JobRecord, JobView, PartId, PartRecord, Stage, State
from epd.store import keys
from epd.store.clock import milliseconds
from epd.store.redis.connection import Argument, Command, Connection
from epd.store.redis.portions import portions
from epd.store.redis.reading import read_record
from epd.store.redis.scripts import Script
from epd.store.values import MAX_WATCHERS

#: What a part shows whose record was written by a version that this one cannot read.
UNREADABLE = PartRecord.failed(Internal("the record of this part cannot be read"))

_PART = "part:"


def creation(
    record: JobRecord,
    parts: Mapping[PartId, str],
    final: Collection[PartId],
    *,
    job_ttl: float,
    watcher: str | None = None,
) -> list[Argument]:
    """ARGV of the script ``job_create``; ``parts`` are PartRecord JSON, ``final`` those that have ended."""
    fields: dict[str, str] = {"record": record.to_json()}
    if watcher is not None:
        fields["watchers"] = json.dumps([watcher])
    for part_id, text in parts.items():
        name = str(part_id)
        fields[_PART + name] = text
        if part_id in final:
            fields["final:" + name] = "1"
    end, still_open = milliseconds(record.deadline + job_ttl), len(parts) - len(final)
    return [end, milliseconds(job_ttl), still_open, *chain.from_iterable(fields.items())]


def counting(hits: int) -> Command:
    """The command that adds cached parts of a new job to the totals of L1."""
    return ("HINCRBY", keys.CACHE_TOTALS, "hits_l1", hits)


class Jobs:
    """Job records and their parts; every change is one script. A part becomes final once."""

    def __init__(self, connection: Connection, *, job_ttl: float) -> None:
        """Keep finished jobs ``job_ttl`` seconds."""
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
        """Write a job with its parts, some of which may be final already (cached).

        A second call for the same id changes nothing. ``hits`` parts were in L1 and are counted with it.
        """
        texts = {part_id: part.to_json() for part_id, part in parts.items()}
        final = {part_id for part_id, part in parts.items() if part.state in FINAL_STATES}
        args = creation(record, texts, final, job_ttl=self._job_ttl, watcher=watcher)
        job = self._connection.script_command(Script.JOB_CREATE, [keys.job(record.job_id)], args)
        self._connection.pipe([job, counting(hits)] if hits else [job])

    def view(self, job_id: str) -> JobView | None:
        """The job as it stands, or None."""
        fields: dict[str, str] = self._connection.call("HGETALL", keys.job(job_id))
        if "record" not in fields:
            return None
        record = read_record(JobRecord, fields["record"])
        parts: dict[str, PartRecord] = {}
        for name, text in fields.items():
            if name.startswith(_PART):
                part = read_record(PartRecord, text)
                parts[name.removeprefix(_PART)] = UNREADABLE if part is None else part
        if record is None:
            return None
        return JobView(record=record, parts=parts)

    def open_parts(self, job_ids: Sequence[str]) -> list[int | None]:
        """How many parts of each job are not final; None: no such job. One round trip."""
        commands = [("HGET", keys.job(job_id), "open") for job_id in job_ids]
        answers = self._connection.pipe(commands) if commands else []
        return [None if answer is None else max(0, int(answer)) for answer in answers]

    def watch(self, job_id: str, watcher: str) -> bool:
        """Publish changes of a job to a watcher's channel too; False when there is no such job."""
        return self._run(Script.JOB_WATCH, job_id, watcher, MAX_WATCHERS)

    def advance(self, job_id: str, part: PartId, stage: Stage) -> bool:
        """Mark a part running at a stage. False: the part is final or the job is gone, so drop the work."""
        return self.advance_all([(job_id, part)], stage)[0]

    def advance_all(self, parts: Sequence[tuple[str, PartId]], stage: Stage) -> list[bool]:
        """``advance`` for parts of many jobs, in their order. One round trip."""
        record = PartRecord(state=State.RUNNING, stage=stage).to_json()
        named = [(job_id, str(part)) for job_id, part in parts]
        commands = [
            self._connection.script_command(
                Script.JOB_ADVANCE, [], (record, stage, *chain.from_iterable(portion))
            )
            for portion in portions(named)
        ]
        answers = self._connection.pipe(commands) if commands else []
        return [bool(answer) for answer in chain.from_iterable(answers)]

    def add_part(self, job_id: str, part: PartId) -> bool:
        """Add a part (a video's audio); adding it again changes nothing. False: the job is gone or closed."""
        return self._run(Script.JOB_ADD_PART, job_id, job_id, str(part), PartRecord().to_json())

    def finish(self, job_id: str, part: PartId, record: PartRecord) -> bool:
        """Make a part final. False when it was final already or the job is gone."""
        return self._run(
            Script.JOB_FINISH, job_id, job_id, str(part), record.state, record.to_json(), self._ttl_ms
        )

    def close(self, job_id: str, record: PartRecord) -> bool:
        """Make every part that is not final this record (cancelled or expired). False: no such job."""
        return self._run(Script.JOB_CLOSE, job_id, job_id, record.state, record.to_json(), self._ttl_ms)

    @property
    def _ttl_ms(self) -> int:
        return milliseconds(self._job_ttl)

    def _run(self, script: Script, job_id: str, *args: Argument) -> bool:
        return bool(self._connection.run(script, [keys.job(job_id)], args))
