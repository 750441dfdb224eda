"""Encode messages as the pipeline makes them, each with a job record, a claimed flight and a raw blob."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from bench.encoder.site.device import CARD, NAME
from epd.contracts.job import JobRecord, PartId, PartRecord, Priority
from epd.contracts.media import BlobRef, Item, Modality, RawImage, Source
from epd.contracts.messages import EncodeMessage, FetchMessage, Wanted
from epd.identity import content_digest, embedding_key, encoder_identity
from epd.store.open import Store
from epd.store.values import BlobKind, Waiter

#: Items of a job, as a page of a catalogue might send.
_JOB_ITEMS = 64
_SIDE = 4
_SECONDS = 600.0


def encode_messages(store: Store, count: int) -> Iterator[EncodeMessage]:
    """So many messages, each for an embedding that does not exist yet."""
    for start in range(0, count, _JOB_ITEMS):
        yield from _job(store, min(_JOB_ITEMS, count - start))


def _job(store: Store, size: int) -> Iterator[EncodeMessage]:
    now = time.time()
    items = tuple(
        Item(index=index, modality=Modality.IMAGE, source=Source(url=f"http://catalogue.test/{index}.jpg"))
        for index in range(size)
    )
    record = JobRecord(
        job_id=uuid.uuid4().hex, model=NAME, created=now, deadline=now + _SECONDS, items=items,
        ids=(None,) * size,
    )  # fmt: skip
    store.jobs.create(
        record, {PartId(item.index, item.modality): PartRecord() for item in items}, watcher="bench"
    )
    for item in items:
        yield _message(store, record, item)


def _message(store: Store, record: JobRecord, item: Item) -> EncodeMessage:
    digest = content_digest(f"{record.job_id}/{item.index}".encode())
    key = embedding_key(digest=digest, track=Modality.IMAGE, card=CARD, options=item.options)
    restart = FetchMessage(
        job_id=record.job_id, model=record.model, priority=Priority.INTERACTIVE, deadline=record.deadline,
        enqueued_at=record.created, items=(item,),
    )  # fmt: skip
    store.flights.claim(key, Waiter(record.job_id, PartId(item.index, Modality.IMAGE), restart.to_json()))
    wanted = Wanted(key=key, track=Modality.IMAGE, encoder=NAME, encoder_identity=encoder_identity(CARD))
    return EncodeMessage(
        job_id=record.job_id, model=record.model, priority=restart.priority, deadline=record.deadline,
        enqueued_at=time.time(), item=item, digest=digest, wanted=wanted, raw=_raw(store),
        timings={"fetch": 0.05, "decode": 0.02},
    )  # fmt: skip


def _raw(store: Store) -> RawImage:
    pixels = bytes(_SIDE * _SIDE * 3)
    with store.blobs.create(BlobKind.RAW) as (name, file):
        file.write(pixels)
    blob = BlobRef(name=name, nbytes=len(pixels))
    return RawImage(blob=blob, height=_SIDE, width=_SIDE, original_size=(_SIDE, _SIDE))


def ready_message(task: str, queue: str, document: Mapping[str, Any], *, expires: str | None = None) -> bytes:
    """One task with one positional argument, as an element of its queue's list.

    ``expires`` is an ISO time, as from our publisher.
    """
    task_id = uuid.uuid4().hex
    body = json.dumps([[document], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    envelope = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _headers(task, task_id, expires),
        "properties": {
            "correlation_id": task_id,
            "reply_to": uuid.uuid4().hex,
            "delivery_mode": 2,
            "delivery_info": {"exchange": queue, "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": uuid.uuid4().hex,
        },
    }
    return json.dumps(envelope).encode()


def _headers(task: str, task_id: str, expires: str | None) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("shadow", "eta", "group", "group_index", "parent_id", "stamped_headers", "replaced_task_nesting")
    )
    return empty | {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        "expires": expires,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "(...)",
        "kwargsrepr": "{}",
        "origin": "bench",
        "ignore_result": True,
        "stamps": {},
        "epd_enqueued_at": time.time(),
    }
