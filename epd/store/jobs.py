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
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from redis.client import PubSub
from redis.exceptions import RedisError

from epd.contracts.errors import Internal, StoreUnavailable
from epd.contracts.job import (
    FINAL_STATES,
    JobRecord,
    JobView,
    Notice,
    PartId,
    PartRecord,
    Priority,
    Stage,
    State,
)
from epd.store import keys
from epd.store.connection import Argument, Command, Connection, answering, portions, read_record
from epd.store.keys import milliseconds
from epd.store.scripts import Script
from epd.store.values import MAX_WATCHERS, AdmissionBound, Load

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


#: Notices handed out by one call, so that a flood is handled in bounded portions.
MAX_DRAINED = 1000

#: Seconds after which a listener looks whether it is to end. redis-py's subscriptions may not be closed by
#: another thread than the one that reads.
_SLICE = 0.25


class Notices:
    """Changes of part states, published to the processes that watch a job.

    Each watcher has one subscription, which its first ``listen`` makes, and one thread that listens.
    """

    def __init__(self, connection: Connection) -> None:
        """Subscribe later."""
        self._connection = connection
        self._closing = threading.Event()
        self._guard = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._subscriptions: dict[str, PubSub] = {}

    def listen(self, watcher: str, timeout: float) -> list[Notice]:
        """Notices that are there, or the first that come within ``timeout`` seconds.

        Raises:
            StoreUnavailable: the subscription broke; the next call makes a new one. Notices in between
                are lost, so read the jobs again.
        """
        with self._guard:
            reading = self._reading.setdefault(watcher, threading.Lock())
        with reading:
            try:
                return self._drain(self._subscription(watcher), time.monotonic() + timeout)
            except StoreUnavailable:
                self._drop(watcher)
                raise

    def close(self) -> None:
        """End every subscription; who listens gets what is there, at once. A later call subscribes anew."""
        self._closing.set()
        with self._guard:
            readers, self._reading = dict(self._reading), {}
        for watcher, reading in readers.items():
            with reading:
                self._drop(watcher)
        self._closing.clear()

    def _subscription(self, watcher: str) -> PubSub:
        if watcher not in self._subscriptions:
            self._subscriptions[watcher] = self._connection.subscribe(keys.events(watcher))
        return self._subscriptions[watcher]

    def _drain(self, subscription: PubSub, end: float) -> list[Notice]:
        notices: list[Notice] = []
        while len(notices) < MAX_DRAINED and not self._closing.is_set():
            wait = 0.0 if notices else min(_SLICE, max(0.0, end - time.monotonic()))
            with answering():
                message = subscription.get_message(timeout=wait)
            if message is not None:
                notice = read_record(Notice, message["data"])
                notices += [notice] if notice is not None else []
            elif notices or time.monotonic() >= end:
                break
        return notices

    def _drop(self, watcher: str) -> None:
        subscription = self._subscriptions.pop(watcher, None)
        if subscription is not None:
            with suppress(RedisError, OSError):
                subscription.close()


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
