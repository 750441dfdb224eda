"""Encode messages over a store, with their jobs, blobs and flights; and rows to answer them."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from epd.contracts.job import JobRecord, PartId, PartRecord
from epd.contracts.media import BlobRef, Item, Modality, RawImage, Source
from epd.contracts.messages import EncodeMessage, FetchMessage, Wanted
from epd.identity import content_digest, embedding_key, encoder_identity
from epd.store.values import BlobKind, Waiter
from gpu_worker.encoders.base import DecodeFacts, ItemPlan
from gpu_worker.engine.slot import Encoded
from gpu_worker.service.results import ResultWriter, StoreRetry
from gpu_worker.service.tickets import Admission, Ticket
from tests.store_kit import Stores
from tests.unit.tasks.flow_kit import CONFIG, EYE, Bench

CARDS = {"eye": EYE}


class EncodeBench(Bench):
    """The encode end of the pipeline in one process; two jobs may want the same image."""

    def __init__(self, folder: Path, stores: Stores, card: Any = EYE, **settings: Any) -> None:
        super().__init__(folder, stores, **settings)
        self.card = card
        self.retry = StoreRetry(lambda: self.now)
        self.writer = ResultWriter(self.context, {"eye": card}, self.retry)
        self.admission = Admission(self.context, {"eye": card})

    def ticket(self, value: int, **fields: Any) -> Ticket:
        return Ticket(id=uuid.uuid4().hex, message=self.encode_message(value, **fields), begun_at=self.now)

    def encode_message(
        self, value: int, *, seconds: float = 60.0, size: tuple[int, int] = (4, 6)
    ) -> EncodeMessage:
        height, width = size
        data = np.full((height, width, 3), value, np.uint8).tobytes()
        with self.store.blobs.create(BlobKind.RAW) as (name, file):
            file.write(data)
        item = Item(index=0, modality=Modality.IMAGE, source=Source(url="http://h/a.png"))
        job_id = uuid.uuid4().hex
        record = JobRecord(
            job_id=job_id, model=CONFIG.default_model, created=self.now, deadline=self.now + seconds,
            items=(item,), ids=(None,),
        )  # fmt: skip
        self.store.jobs.create(record, {PartId(0, Modality.IMAGE): PartRecord()})
        digest = content_digest(data)
        key = embedding_key(digest=digest, track=Modality.IMAGE, card=self.card, options=item.options)
        common = {
            "job_id": job_id,
            "model": record.model,
            "priority": record.priority,
            "deadline": record.deadline,
        }
        restart = FetchMessage(**common, enqueued_at=self.now, items=(item,))
        self.store.flights.claim(key, Waiter(job_id, PartId(0, Modality.IMAGE), restart.to_json()))
        return EncodeMessage(
            **common, enqueued_at=self.now - 2, item=item, digest=digest,
            wanted=Wanted(
                key=key, track=Modality.IMAGE, encoder="eye", encoder_identity=encoder_identity(self.card)
            ),
            raw=RawImage(
                blob=BlobRef(name=name, nbytes=len(data)), height=height, width=width,
                original_size=(width, height),
            ),
            timings={"decode": 0.5},
        )  # fmt: skip

    def has_blob(self, ticket: Ticket) -> bool:
        return (self.settings.blob_dir / ticket.message.raw.blob.name).exists()

    def state_of(self, ticket: Ticket) -> PartRecord:
        view = self.store.jobs.view(ticket.message.job_id)
        assert view is not None
        return view.parts["0.image"]


def encoded(rows: int = 3, *, grid: tuple[int, int, int] | None = None) -> Encoded:
    data = np.arange(rows * EYE.hidden, dtype=np.float32)
    plan = ItemPlan(tokens=rows, cost=rows, bucket="b", facts=DecodeFacts(grid_thw=grid))
    return Encoded(
        plan=plan, rows=memoryview(data.tobytes()), hidden=EYE.hidden, batch_size=2, timings={"forward": 0.1}
    )


def again(ticket: Ticket, attempt: int) -> Ticket:
    """The same work, as it comes after that many fetches."""
    return replace(ticket, message=ticket.message.model_copy(update={"attempt": attempt}))


def wait_for(condition: Any, *, within: float = 20.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.002)
