"""A GPU worker with one encoder: raw media in, rows and part records out."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from epd.contracts.job import JobRecord, PartId, PartRecord, State
from epd.contracts.media import BlobRef, Item, Modality, RawAudio, RawFrames, Source
from epd.contracts.messages import EncodeMessage, FetchMessage, Wanted
from epd.identity import content_digest, embedding_key, encoder_identity
from epd.store.files.embedding_format import open_embedding
from epd.store.values import BlobKind, Waiter
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.device import CpuDevice
from gpu_worker.engine.engine import Engine
from gpu_worker.service.dispatcher import Dispatcher
from gpu_worker.service.results import ResultWriter, StoreRetry
from gpu_worker.service.segment_cache import SegmentCache
from gpu_worker.service.tickets import Admission, TaskResult
from tests.store_kit import Stores
from tests.unit.service.encode_bench import wait_for
from tests.unit.tasks.flow_kit import CONFIG, Bench

Values = NDArray[Any]


class Deliverer:
    """A deliverer that releases each result's ticket, as an ack would."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.results: dict[str, TaskResult] = {}
        self.begun: list[str] = []

    def is_withdrawn(self, ticket_id: str) -> bool:
        return False

    def on_begun(self, ticket_ids: Sequence[str]) -> None:
        self.begun += ticket_ids

    def on_results(self, results: Sequence[TaskResult]) -> None:
        self.results |= {one.ticket_id: one for one in results}
        self.dispatcher.release([one.ticket_id for one in results])

    def on_fatal(self, error: BaseException) -> None:
        raise AssertionError(error)


class Rig(Bench):
    """A GPU worker with one encoder, over a store."""

    def __init__(self, folder: Path, stores: Stores, encoder: Encoder, **settings: Any) -> None:
        super().__init__(folder, stores, **settings)
        self.card = encoder.card
        encoders, cards = {self.card.name: encoder}, {self.card.name: self.card}
        self.cache = SegmentCache(self.store, encoders, cards)
        writer = ResultWriter(self.context, cards, StoreRetry(lambda: self.now))
        admission = Admission(self.context, cards)
        self.dispatcher = Dispatcher(
            context=self.context, admission=admission, writer=writer, segments=self.cache
        )
        self.engine = Engine(
            encoders,
            budget=Budget(max_items=8, max_cost=65_536),
            device=CpuDevice(),
            observer=self.dispatcher,
            clock=lambda: self.now,
        )
        self.deliverer = Deliverer(self.dispatcher)
        self.engine.start(30)
        self.dispatcher.open(self.engine, self.deliverer)

    def close(self) -> None:
        self.dispatcher.close(5)
        self.engine.stop(10)

    def count(self, name: str) -> int:
        return int(self.engine.counters.snapshot().get(f"{name}/{self.card.name}", 0))

    def encode(self, values: Values, *, fps: float = 2.0) -> tuple[PartRecord, bytes]:
        """Encode audio [samples] or frames [F, H, W, 3]; its part's record and the bytes of its rows."""
        message = self.message(values, fps)
        ticket_id = uuid.uuid4().hex
        self.dispatcher.accept(ticket_id, message.to_document())
        wait_for(lambda: ticket_id in self.deliverer.results)
        view = self.store.jobs.view(message.job_id)
        assert view is not None
        (record,) = view.parts.values()
        assert record.state is State.DONE, record.error
        wait_for(lambda: self.files("r") == [])
        return record, self.rows(message.wanted.key)

    def rows(self, key: str) -> bytes:
        file = open_embedding(self.store.embeddings.path(key))
        return file.path.read_bytes()[file.offset :]

    def message(self, values: Values, fps: float) -> EncodeMessage:
        data = values.tobytes()
        with self.store.blobs.create(BlobKind.RAW) as (name, file):
            file.write(data)
        blob = BlobRef(name=name, nbytes=len(data))
        raw: RawAudio | RawFrames
        if values.ndim == 1:
            kind, raw = Modality.AUDIO, RawAudio(blob=blob, samples=len(values), sample_rate=16_000)
        else:
            count, height, width, _ = values.shape
            kind = Modality.VIDEO
            raw = RawFrames(
                blob=blob, frames=count, height=height, width=width, original_size=(width, height),
                timestamps=tuple(index / fps for index in range(count)), duration=count / fps,
                sampled_fps=fps, source_frames=count,
            )  # fmt: skip
        item = Item(index=0, modality=kind, source=Source(url="http://h/a"))
        part, digest = PartId(0, kind), content_digest(data)
        record = JobRecord(
            job_id=uuid.uuid4().hex, model=CONFIG.default_model, created=self.now,
            deadline=self.now + 600, items=(item,), ids=(None,),
        )  # fmt: skip
        self.store.jobs.create(record, {part: PartRecord()})
        key = embedding_key(digest=digest, track=kind, card=self.card, options=item.options)
        common: dict[str, Any] = {
            "job_id": record.job_id, "model": record.model, "priority": record.priority,
            "deadline": record.deadline, "enqueued_at": self.now,
        }  # fmt: skip
        restart = FetchMessage(**common, items=(item,))
        self.store.flights.claim(key, Waiter(record.job_id, part, restart.to_json()))
        identity = encoder_identity(self.card)
        wanted = Wanted(key=key, track=kind, encoder=self.card.name, encoder_identity=identity)
        return EncodeMessage(**common, item=item, digest=digest, wanted=wanted, raw=raw)
