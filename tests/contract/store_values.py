"""Values and jobs for the store's tests, and waiting with a deadline."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.job import JobRecord, Notice, PartId, PartRecord, Priority
from epd.contracts.media import Item, Modality, Source
from epd.store.admissions import Load
from epd.store.open import Store
from epd.store.values import Completed, Waiter

HIDDEN = 8
IMAGE = PartId(0, Modality.IMAGE)
AUDIO = PartId(0, Modality.AUDIO)


def key_of(number: int) -> str:
    """A well-formed embedding key."""
    return f"{number:064x}"


def new_job(store: Store, *, items: int = 1, watcher: str | None = None, deadline: float = 60) -> str:
    """Write a job of image items that all are queued; its id."""
    job_id = uuid.uuid4().hex
    record = job_record(job_id, items, deadline)
    parts = {PartId(index, Modality.IMAGE): PartRecord() for index in range(items)}
    store.jobs.create(record, parts, watcher)
    return job_id


def job_record(job_id: str, items: int = 1, deadline: float = 60) -> JobRecord:
    now = time.time()
    return JobRecord(
        job_id=job_id,
        model="demo",
        created=now,
        deadline=now + deadline,
        items=tuple(
            Item(index=index, modality=Modality.IMAGE, source=Source(url="http://a.test/"))
            for index in range(items)
        ),
        ids=(None,) * items,
    )


def admit(
    store: Store, job_id: str, items: int = 1, nbytes: int = 0, priority: Priority = Priority.INTERACTIVE
) -> bool:
    return store.admissions.admit(job_id, Load(items, nbytes), priority=priority, until=time.time() + 60)


def admitted_job(store: Store, items: int = 1, nbytes: int = 0) -> str:
    job = uuid.uuid4().hex
    assert admit(store, job, items, nbytes)
    store.jobs.create(
        job_record(job, items), {PartId(index, Modality.IMAGE): PartRecord() for index in range(items)}
    )
    return job


def waiter_of(job_id: str, part: PartId = IMAGE, message: str | None = None) -> Waiter:
    return Waiter(job_id, part, message if message is not None else f"message of {job_id}")


def entry_of(key: str, tokens: int = 4) -> Entry:
    """An entry with a grid of ``tokens`` after merging by two."""
    nbytes = tokens * HIDDEN * 4
    metadata = Metadata(
        embedding_key=key,
        content_digest=key_of(99),
        modality=Modality.IMAGE,
        encoder="tiny",
        dtype="float32",
        token_count=tokens,
        hidden=HIDDEN,
        grid_thw=(1, 2, 2 * tokens),
        merge_size=2,
    )
    ref = EmbeddingRef(key=key, shape=(tokens, HIDDEN), dtype="float32", nbytes=nbytes)
    return Entry(ref=ref, metadata=metadata)


def data_of(entry: Entry, filler: int = 7) -> memoryview:
    return memoryview(bytes([filler]) * entry.ref.nbytes)


@dataclass(frozen=True, slots=True)
class Made:
    """An embedding that was published and indexed, for a job of its own."""

    entry: Entry
    job_id: str
    finished: int


def put_embedding(store: Store, key: str, tokens: int = 4) -> Made:
    """Publish and index an embedding as a worker does."""
    job_id, entry = new_job(store), entry_of(key, tokens)
    store.flights.claim(key, waiter_of(job_id))
    store.embeddings.publish_file(entry.ref, data_of(entry), {})
    (finished,) = store.flights.complete([Completed(entry, job_id, IMAGE, {"encode": 0.5})])
    return Made(entry, job_id, finished)


def part_of(store: Store, job_id: str, part: PartId = IMAGE) -> PartRecord:
    view = store.jobs.view(job_id)
    assert view is not None
    return view.parts[str(part)]


def listen_until(store: Store, watcher: str, count: int, seconds: float = 5) -> list[Notice]:
    """The next ``count`` notices, or those that came within the time."""
    notices: list[Notice] = []
    end = time.monotonic() + seconds
    while len(notices) < count and time.monotonic() < end:
        notices += store.notices.listen(watcher, 0.2)
    return notices


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Poll until a condition holds; fails after the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)
