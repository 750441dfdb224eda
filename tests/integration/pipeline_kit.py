"""CPU workers as real processes on a real server, a loopback web server, and a reader of the encode queue.

No GPU worker runs: what reaches the encode queue is what the tests look at.
"""

from __future__ import annotations

import base64
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import redis
from PIL import Image

from epd.contracts.embedding import AudioRules, EncoderCard, VideoRules
from epd.contracts.job import JobRecord, JobView, PartId, PartRecord
from epd.contracts.media import Item, ItemOptions, Modality, Source
from epd.contracts.messages import EncodeMessage, FetchMessage
from epd.settings import Settings
from epd.store.open import open_store
from tests.integration.transport_kit import ROOT, Broker, wait_until

CONFIG = """
default_model = "demo"
[encoders.eye]
family = "dinov2"
path = "eye"
[encoders.ear]
family = "whisper"
path = "ear"
[models.demo]
image = "eye"
video = "eye"
audio = "ear"
"""

CELERY = [sys.executable, "-m", "celery", "-A", "tasks"]

PUBLISH = """
import sys
from epd.contracts.messages import FetchMessage
from tasks.publish import publish_fetch
for line in sys.stdin:
    publish_fetch([FetchMessage.from_json(line)])
    print("published", flush=True)
"""


def png(colour: tuple[int, int, int], size: tuple[int, int] = (8, 6)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def make_video(path: Path, *, audio: bool, hue: int = 0) -> bytes:
    """One second of a test video, with a tone or silent."""
    from workers.decode.ffmpeg import ffmpeg_binary

    tone = ["-f", "lavfi", "-i", "sine=frequency=440:duration=1"] if audio else []
    image = ["-f", "lavfi", "-i", f"testsrc=size=64x48:rate=8:duration=1,hue=h={hue}"]
    command = [str(ffmpeg_binary()), "-nostdin", "-y", *image, *tone, "-c:v", "mpeg4", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return path.read_bytes()


class Site(http.server.ThreadingHTTPServer):
    """Serves bytes by path on loopback, with an ETag, and counts what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.pages: dict[str, bytes] = {}
        self.answers: list[tuple[str, int]] = []
        self.delay = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, path: str) -> int:
        return self.answers.count((path, 200))


class _Pages(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        time.sleep(self.server.delay)
        body = self.server.pages.get(self.path)
        etag = f'"{hash(body)}"'
        status = 404 if body is None else 304 if self.headers.get("If-None-Match") == etag else 200
        self.server.answers.append((self.path, status))
        self.send_response(status)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(body or b"") if status == 200 else 0))
        self.end_headers()
        if status == 200:
            self.wfile.write(body or b"")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield site
    site.shutdown()
    site.server_close()
    thread.join(5)


class Line:
    """The CPU half of the pipeline: settings, store, workers."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        (folder / "epd.toml").write_text(CONFIG)
        self.environment = {
            "EPD_BROKER_URL": broker.url,
            "EPD_STORE_URL": broker.url.replace("/0", "/1"),
            "EPD_CONFIG": str(folder / "epd.toml"),
            "EPD_BLOB_DIR": str(folder / "blobs"),
            "EPD_EMBEDDING_DIR": str(folder / "embeddings"),
            "EPD_FETCH_ALLOW_HOSTS": "127.0.0.1",
            "EPD_FETCH_RETRIES": "0",
            "EPD_FLIGHT_LEASE": "3",
        }
        self.settings = Settings(
            broker_url=self.environment["EPD_BROKER_URL"],
            store_url=self.environment["EPD_STORE_URL"],
            blob_dir=folder / "blobs",
            embedding_dir=folder / "embeddings",
        )
        self.store = open_store(self.settings)
        self.processes: list[subprocess.Popen[Any]] = []
        self.publisher: subprocess.Popen[str] | None = None

    def announce(self) -> None:
        """What a GPU worker would say of its encoders."""
        common = {"dtype": "float32", "preprocess_revision": "1", "hidden": 4}
        rules = VideoRules(fps=4, min_frames=2, max_frames=8)
        eye = EncoderCard(
            name="eye", family="dinov2", weights_digest="a" * 64, video=rules,
            modalities=(Modality.IMAGE, Modality.VIDEO), **common,
        )  # fmt: skip
        ear = EncoderCard(
            name="ear", family="whisper", weights_digest="b" * 64, audio=AudioRules(sample_rate=16000),
            modalities=(Modality.AUDIO,), **common,
        )  # fmt: skip
        self.store.cards.announce(eye)
        self.store.cards.announce(ear)

    def start(self, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
        """A worker of the real application, with light flags."""
        light = ["--without-mingle", "--without-gossip", "-l", "INFO"]
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [*CELERY, "worker", *light, *flags], cwd=self.folder, env=self._environment(**environment),
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def alive(self, *kinds: str) -> bool:
        beating = {beat.kind for beat in self.store.heartbeats.alive()}
        return set(kinds) <= beating

    def celery(self, *arguments: str) -> str:
        """The output of a ``celery -A tasks`` command."""
        done = subprocess.run(
            [*CELERY, *arguments], cwd=self.folder, env=self._environment(), check=False,
            capture_output=True, timeout=40, text=True,
        )  # fmt: skip
        return done.stdout + done.stderr

    def _environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, **self.environment, **more, "PYTHONPATH": f"{self.folder}:{ROOT}"}

    def submit(
        self, *items: tuple[Modality, str], options: ItemOptions | None = None, seconds: float = 60
    ) -> str:
        """Write a job of URLs and publish its one chunk."""
        job_id, now = uuid.uuid4().hex, time.time()
        made = tuple(
            Item(index=index, modality=kind, source=Source(url=url), options=options or ItemOptions())
            for index, (kind, url) in enumerate(items)
        )
        record = JobRecord(
            job_id=job_id,
            model="demo",
            created=now,
            deadline=now + seconds,
            items=made,
            ids=(None,) * len(made),
        )
        self.store.jobs.create(record, {PartId(item.index, item.modality): PartRecord() for item in made})
        message = FetchMessage(
            job_id=job_id,
            model="demo",
            priority=record.priority,
            deadline=record.deadline,
            enqueued_at=now,
            items=made,
        )
        self._publish(message)
        return job_id

    def _publish(self, message: FetchMessage) -> None:
        """Through the real publisher, in a process of its own since Celery's settings are one a process."""
        if self.publisher is None:
            self.publisher = subprocess.Popen(
                [sys.executable, "-c", PUBLISH], cwd=self.folder, env=self._environment(),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True,
            )  # fmt: skip
            self.processes.append(self.publisher)
        assert self.publisher.stdin is not None
        assert self.publisher.stdout is not None
        self.publisher.stdin.write(message.to_json() + "\n")
        self.publisher.stdin.flush()
        assert self.publisher.stdout.readline() == "published\n"

    def view(self, job_id: str) -> JobView:
        view = self.store.jobs.view(job_id)
        assert view is not None
        return view

    def encodes(self, job_id: str) -> list[EncodeMessage]:
        """The job's messages that wait on the encode queue."""
        with redis.Redis.from_url(self.broker.url) as client:
            texts = client.lrange("encode", 0, -1)
        bodies = [json.loads(base64.b64decode(json.loads(text)["body"])) for text in texts]
        messages = [EncodeMessage.model_validate(body[0][0]) for body in bodies]
        return [message for message in messages if message.job_id == job_id]

    def wait_encodes(self, job_id: str, count: int, *, within: float = 30) -> list[EncodeMessage]:
        wait_until(lambda: len(self.encodes(job_id)) >= count, within=within, what=f"{count} encode messages")
        return self.encodes(job_id)

    def raw(self, message: EncodeMessage) -> np.ndarray[Any, Any]:
        """The bytes that the GPU worker would read."""
        return np.fromfile(self.store.blobs.path(message.raw.blob), np.uint8)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait(10)
        if self.publisher is not None:
            self.publisher.communicate()
