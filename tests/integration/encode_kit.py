"""A real GPU worker process on a real server, fed with encode messages for small random checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from epd.settings import Settings
from epd.store.open import open_store
from epd.store.values import BlobKind, Heartbeat, Waiter
from gpu_worker.encoders.image.dinov2 import Dinov2Shape, Dinov2Tower
from tasks.transport import keys
from tests.integration.transport_kit import ROOT, Broker, wait_until
from tests.unit.encoders.tiny_checkpoints import DINOV2, random_state, tiny_folder, write_checkpoint

CONFIG = """
default_model = "demo"
[encoders.eye]
family = "dinov2"
path = "{eye}"
dtype = "float32"
[encoders.ear]
family = "whisper"
path = "{ear}"
dtype = "float32"
[models.demo]
image = "eye"
video = "eye"
audio = "ear"
"""

_PUBLISH = """
import json, sys
from epd.contracts.messages import EncodeMessage
from tasks import publish
own = publish.task_id
for line in sys.stdin:
    task_id, messages = json.loads(line)
    publish.task_id = (lambda stage, message: task_id) if task_id else own
    publish.publish_encode([EncodeMessage.from_json(text) for text in messages])
    print("published", flush=True)
"""


def dinov2_checkpoint(folder: Path, *, width: int, layers: int) -> Path:
    """A random checkpoint of a chosen size: the larger, the longer a batch takes."""
    shape = Dinov2Shape(
        width=width, layers=layers, heads=4, hidden=2 * width, patch=14, trained_grid=37, epsilon=1e-6,
        gated=False, qkv_bias=True,
    )  # fmt: skip
    config = {**DINOV2, "hidden_size": width, "num_hidden_layers": layers}
    return write_checkpoint(folder, config, random_state(Dinov2Tower(shape), ""))


class EncodeLine:
    """The encode half of the pipeline: settings, store, messages, workers."""

    def __init__(self, broker: Broker, folder: Path, *, width: int = 32, layers: int = 2) -> None:
        self.broker = broker
        self.folder = folder
        eye = dinov2_checkpoint(folder / "eye", width=width, layers=layers)
        (folder / "epd.toml").write_text(CONFIG.format(eye=eye, ear=tiny_folder("whisper", folder)))
        self.environment = {
            "EPD_BROKER_URL": broker.url,
            "EPD_STORE_URL": broker.url.replace("/0", "/1"),
            "EPD_CONFIG": str(folder / "epd.toml"),
            "EPD_BLOB_DIR": str(folder / "blobs"),
            "EPD_EMBEDDING_DIR": str(folder / "embeddings"),
            "EPD_TORCH_THREADS": "1",
            "EPD_MAX_BATCH_ITEMS": "8",
        }
        self.settings = Settings(
            broker_url=self.environment["EPD_BROKER_URL"],
            store_url=self.environment["EPD_STORE_URL"],
            blob_dir=folder / "blobs",
            embedding_dir=folder / "embeddings",
        )
        self.store = open_store(self.settings)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._publisher: subprocess.Popen[str] | None = None

    def worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """The worker that an earlier test left running, or a new one: a start costs seconds."""
        running = [process for process in self.processes if process.poll() is None]
        return running[-1] if running else self.start(**environment)

    def start(self, *flags: str, ready: bool = True, **environment: str) -> subprocess.Popen[bytes]:
        """A worker as a user starts it; returns when its heartbeat says ready."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_worker", "--devices", "cpu", *flags], cwd=self.folder,
                stdout=log, stderr=log, start_new_session=True, env=self.process_environment(**environment),
            )  # fmt: skip
        self.processes.append(process)
        if ready:
            wait_until(lambda: self.is_ready(process.pid), within=60, what="worker ready")
        return process

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

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

    def celery(self, *arguments: str) -> str:
        """The output of a ``celery -A tasks`` command."""
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tasks", *arguments], cwd=self.folder, check=False,
            env=self.process_environment(), capture_output=True, timeout=40, text=True,
        )  # fmt: skip
        return done.stdout + done.stderr

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
        """Through the real publisher, in a process of its own since Celery's settings are one a process."""
        if self._publisher is None:
            self._publisher = subprocess.Popen(
                [sys.executable, "-c", _PUBLISH], env=self.process_environment(), cwd=self.folder,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._publisher.stdin is not None
        assert self._publisher.stdout is not None
        self._publisher.stdin.write(json.dumps([task_id, [one.to_json() for one in messages]]) + "\n")
        self._publisher.stdin.flush()
        assert self._publisher.stdout.readline() == "published\n"

    def view(self, job_id: str) -> JobView:
        view = self.store.jobs.view(job_id)
        assert view is not None
        return view

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

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        if self._publisher is not None:
            self._publisher.kill()
            self._publisher.communicate()

    def process_environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, **self.environment, **more, "PYTHONPATH": str(ROOT)}


def parse_events(text: str) -> list[dict[str, object]]:
    """Lines of JSON, as the event reader of the tests writes them."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
