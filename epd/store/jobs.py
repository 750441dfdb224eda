"""Jobs, one hash each, and the notices of their changes (``lua/jobs.lua``).

The state of a job is never stored; it follows from its parts (``JobView``). The fields of a job's hash:

field         value
record        JobRecord JSON
part:{id}     PartRecord JSON, one per part ("3.audio")
final:{id}    "1" once that part is final; set first, so the first final record wins
open          number of parts that are not final; at zero the hash gets ``job_ttl``
closed        the state that ``close`` gave, for people who look; no part is added from then on
watchers      JSON list of the watchers to notify
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain

from redis.client import PubSub
from redis.exceptions import RedisError

from epd.contracts.errors import Internal, StoreUnavailable
from epd.contracts.job import FINAL_STATES, JobRecord, JobView, Notice, PartId, PartRecord, Stage, State
from epd.store import keys
from epd.store.connection import Connection, answering, chunks, read_record, script_command
from epd.store.keys import milliseconds
from epd.store.scripts import Argument, Command, Script
from epd.store.values import MAX_WATCHERS

#: Shown for a part whose record was written by a version that this one cannot read.
UNREADABLE = PartRecord.failed(Internal("the record of this part cannot be read"))
#: Notices that one call of ``listen`` returns at most.
MAX_NOTICES = 1000

#: Seconds between a listener's checks whether it is to end. Only the thread that reads a subscription of
#: redis-py may close it.
_CLOSE_CHECK_SECONDS = 0.25
_PART = "part:"
#: The record of a running part, by stage.
_RUNNING = {stage: PartRecord(state=State.RUNNING, stage=stage).to_json() for stage in Stage}


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
        texts = [(part_id, part.to_json(), part.state in FINAL_STATES) for part_id, part in parts.items()]
        job = create_command(record, texts, job_ttl=self._job_ttl, watcher=watcher)
        self._connection.pipe([job, count_hits_command(hits)] if hits else [job])

    def view(self, job_id: str) -> JobView | None:
        """Return the present state of a job; None if there is no such job, or its record is unreadable."""
        fields: dict[str, str] = self._connection.call("HGETALL", keys.job(job_id))
        record = read_record(JobRecord, fields.get("record"))
        if record is None:
            return None
        parts: dict[str, PartRecord] = {}
        for name, text in fields.items():
            if name.startswith(_PART):
                parts[name.removeprefix(_PART)] = read_record(PartRecord, text) or UNREADABLE
        return JobView(record=record, parts=parts)

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


def create_command(
    record: JobRecord,
    parts: Iterable[tuple[PartId, str, bool]],
    *,
    job_ttl: float,
    watcher: str | None = None,
) -> Command:
    """The command that writes a job. ``parts`` are PartRecord JSON, and whether each is final."""
    fields: list[Argument] = ["record", record.to_json()]
    if watcher is not None:
        fields += ("watchers", json.dumps([watcher]))
    open_parts = 0
    for part_id, text, final in parts:
        name = str(part_id)
        fields += (_PART + name, text)
        if final:
            fields += ("final:" + name, "1")
        else:
            open_parts += 1
    end = milliseconds(record.deadline + job_ttl)
    args = (end, milliseconds(job_ttl), open_parts, *fields)
    return script_command(Script.JOB_CREATE, [keys.job(record.job_id)], args)


def count_hits_command(hits: int) -> Command:
    """The command that adds the cached parts of a new job to the totals of L1."""
    return ("HINCRBY", keys.CACHE_TOTALS, "hits_l1", hits)


class Notices:
    """Changes of parts, as published to the processes that watch their jobs.

    Each watcher has one subscription, which its first ``listen`` opens, and one thread that listens.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closing = threading.Event()
        self._guard = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._subscriptions: dict[str, PubSub] = {}

    def listen(self, watcher: str, timeout: float) -> list[Notice]:
        """Return the notices that have arrived, or wait up to ``timeout`` seconds for the first one.

        Raises:
            StoreUnavailable: the subscription broke; the next call opens a new one. Notices may have been
                lost, so the caller has to read its jobs again.
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
        """End all subscriptions. A call that listens returns what it has; a later call subscribes again."""
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
        while len(notices) < MAX_NOTICES and not self._closing.is_set():
            wait = 0.0 if notices else min(_CLOSE_CHECK_SECONDS, max(0.0, end - time.monotonic()))
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
