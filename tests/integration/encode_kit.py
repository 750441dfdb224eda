"""A real GPU worker process on a real server, fed with encode messages for small random checkpoints."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections import Counter
from pathlib import Path

import numpy as np

from epd.contracts.embedding import EncoderCard
from epd.contracts.job import JobRecord, JobView, PartId, PartRecord, State
from epd.contracts.media import BlobRef, Item, Modality, RawAudio, RawImage, Source
from epd.contracts.messages import EncodeMessage, FetchMessage, Wanted
from epd.identity import content_digest, embedding_key, encoder_identity
from epd.store.values import BlobKind, Heartbeat, Waiter
from gpu_worker.encoders.image.dinov2 import Dinov2Shape, Dinov2Tower
from tasks.transport import keys
from tests.integration.line_kit import ProcessLine
from tests.integration.transport_kit import Broker, wait_until
from tests.unit.encoders.tiny_checkpoints import DINOV2, random_state, tiny_folder, write_checkpoint


def dinov2_checkpoint(folder: Path, *, width: int, layers: int) -> Path:
    """A random checkpoint of a chosen size: the larger, the longer a batch takes."""
    shape = Dinov2Shape(
        width=width, layers=layers, heads=4, hidden=2 * width, patch=14, trained_grid=37, epsilon=1e-6,
        gated=False, qkv_bias=True,
    )  # fmt: skip
    config = {**DINOV2, "hidden_size": width, "num_hidden_layers": layers}
    return write_checkpoint(folder, config, random_state(Dinov2Tower(shape), ""))


class EncodeLine(ProcessLine):
    """The encode half of the pipeline: GPU workers, and encode messages for them."""

    def __init__(self, broker: Broker, folder: Path, *, width: int = 32, layers: int = 2) -> None:
        eye = dinov2_checkpoint(folder / "eye", width=width, layers=layers)
        super().__init__(
            broker, folder, eye=str(eye), ear=str(tiny_folder("whisper", folder)),
            EPD_TORCH_THREADS="1", EPD_MAX_BATCH_ITEMS="8",
        )  # fmt: skip

    def worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """The worker that an earlier test left running, or a new one: a start costs seconds."""
        running = [process for process in self.processes if process.poll() is None]
        return running[-1] if running else self.start(**environment)

    def start(self, *flags: str, ready: bool = True, **environment: str) -> subprocess.Popen[bytes]:
        """A worker as a user starts it; returns when its heartbeat says ready."""
        process = self.run("gpu_worker", "--devices", "cpu", *flags, **environment)
        if ready:
            wait_until(lambda: self.is_ready(process.pid), within=60, what="worker ready")
        return process

    def is_ready(self, pid: int) -> bool:
        return any(beat.pid == pid and beat.ready for beat in self.store.heartbeats.alive())

    def counters(self) -> dict[str, float]:
        """Counters of the newest worker as they are from now on, encoders added up."""
        asked = time.time()
        wait_until(lambda: self._last_beat().at > asked, within=10, what="a heartbeat")
        beat = self._last_beat()
        totals: Counter[str] = Counter()
        for key, value in beat.counters.items():
            totals[key.partition("/")[0]] += value  # type: ignore[assignment]
        return dict(totals)

    def _last_beat(self) -> Heartbeat:
        return max(self.store.heartbeats.alive(), key=lambda one: one.at)

    def card(self, name: str) -> EncoderCard:
        card = self.store.cards.get([name])[0]
        assert card is not None
        return card

    def messages(self, count: int, *, audios: int = 0, seconds: float = 60.0) -> list[EncodeMessage]:
        """A job of so many images and audio clips, each with its blob and its claimed flight."""
        now, job_id = time.time(), uuid.uuid4().hex
        kinds = [Modality.IMAGE] * count + [Modality.AUDIO] * audios
        items = tuple(
            Item(index=index, modality=kind, source=Source(url=f"http://h/{index}"))
            for index, kind in enumerate(kinds)
        )
        record = JobRecord(
            job_id=job_id, model="demo", created=now, deadline=now + seconds, items=items,
            ids=(None,) * len(items),
        )  # fmt: skip
        self.store.jobs.create(record, {PartId(item.index, item.modality): PartRecord() for item in items})
        return [self._message(record, item) for item in items]

    def _message(self, record: JobRecord, item: Item) -> EncodeMessage:
        seed = np.random.default_rng(hash((record.job_id, item.index)) & 0xFFFFFFFF)
        raw = self._raw(item.modality, seed)
        digest = content_digest(self.store.blobs.path(raw.blob).read_bytes())
        card = self.card("ear" if item.modality is Modality.AUDIO else "eye")
        key = embedding_key(digest=digest, track=item.modality, card=card, options=item.options)
        common = {
            "job_id": record.job_id,
            "model": "demo",
            "priority": record.priority,
            "deadline": record.deadline,
        }
        restart = FetchMessage(**common, enqueued_at=record.created, items=(item,))
        self.store.flights.claim(
            key, Waiter(record.job_id, PartId(item.index, item.modality), restart.to_json())
        )
        wanted = Wanted(
            key=key, track=item.modality, encoder=card.name, encoder_identity=encoder_identity(card)
        )
        return EncodeMessage(
            **common, enqueued_at=time.time(), item=item, digest=digest, wanted=wanted, raw=raw
        )

    def _raw(self, kind: Modality, seed: np.random.Generator) -> RawImage | RawAudio:
        if kind is Modality.AUDIO:
            data = (seed.standard_normal(8000) / 10).astype(np.float32).tobytes()
            return RawAudio(blob=self._blob(data), samples=8000, sample_rate=16000)
        data = seed.integers(0, 256, 60 * 80 * 3, dtype=np.uint8).tobytes()
        return RawImage(blob=self._blob(data), height=60, width=80, original_size=(80, 60))

    def _blob(self, data: bytes) -> BlobRef:
        with self.store.blobs.create(BlobKind.RAW) as (name, file):
            file.write(data)
        return BlobRef(name=name, nbytes=len(data))

    def publish(self, messages: list[EncodeMessage], *, task_id: str = "") -> None:
        self.send("encode", messages, task_id=task_id)

    def states(self, job_id: str) -> Counter[State]:
        return Counter(part.state for part in self.view(job_id).parts.values())

    def wait_done(self, job_id: str, *, within: float = 60) -> JobView:
        wait_until(lambda: self.view(job_id).state is State.DONE, within=within, what="job done")
        return self.view(job_id)

    def wait_settled(self, *, within: float = 10) -> None:
        """Nothing queued, nothing unacked, no raw blob left."""
        self.wait_acked(within=within)
        wait_until(lambda: not list((self.folder / "blobs").glob("r-*")), within=within, what="blobs freed")

    def wait_acked(self, *, within: float = 10) -> None:
        """Nothing queued, nothing unacked."""
        wait_until(lambda: self.broker.held() == 0 and self.waiting() == 0, within=within, what="all acked")

    def waiting(self) -> int:
        """Messages on the encode queue: new ones, and those that were given back."""
        client = self.broker.client
        patterns = ("encode*", keys.again("encode*"), keys.solo("encode*"))
        return sum(int(client.llen(key)) for pattern in patterns for key in client.scan_iter(pattern))

    def end(
        self, process: subprocess.Popen[bytes], number: int = signal.SIGTERM, *, within: float = 30
    ) -> int:
        process.send_signal(number)
        return process.wait(within)


def parse_events(text: str) -> list[dict[str, object]]:
    """Lines of JSON, as the event reader of the tests writes them."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
