"""CPU workers as real processes on a real server, a loopback web server, and a reader of the encode queue.

No GPU worker runs: what reaches the encode queue is what the tests look at.
"""

from __future__ import annotations

import http.server
import io
import json
import subprocess
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
from epd.contracts.job import JobRecord, PartId, PartRecord, Priority
from epd.contracts.media import Item, ItemOptions, Modality, Source
from epd.contracts.messages import EncodeMessage, FetchMessage
from tasks.queues import PRIORITY_STEPS
from tasks.transport import keys
from tests.integration.line_kit import ProcessLine
from tests.integration.transport_kit import Broker, wait_until

#: Items of a message, as the API makes them.
CHUNK = 4


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


def _source(name: str) -> Source:
    return Source(url=name) if "/" in name else Source(media_id=name)


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


class Line(ProcessLine):
    """The CPU half of the pipeline: fetch and decode workers, and a reader of the encode queue."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        super().__init__(
            broker, folder, eye="eye", ear="ear",
            EPD_FETCH_ALLOW_HOSTS="127.0.0.1", EPD_FETCH_RETRIES="0", EPD_FLIGHT_LEASE="3",
        )  # fmt: skip

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
        return self.run("celery", "-A", "tasks", "worker", *light, *flags, **environment)

    def start_both(self, *, fetch: int, decode: int, **environment: str) -> None:
        """A fetch worker of so many downloads and a decode worker of so many children; both are up then."""
        sizes = {"EPD_FETCH_DOWNLOADS": str(fetch), "EPD_DECODE_PROCESSES": str(decode)}
        self.start("-Q", "fetch", "-n", "fetch@%h", **sizes, **environment)
        self.start("-Q", "decode", "-n", "decode@%h", **sizes, **environment)
        wait_until(lambda: self.alive("fetch", "decode"), within=40, what="workers up")
        self.announce()

    def alive(self, *kinds: str) -> bool:
        beating = {beat.kind for beat in self.store.heartbeats.alive()}
        return set(kinds) <= beating

    def submit(
        self,
        *items: tuple[Modality, str],
        options: ItemOptions | None = None,
        seconds: float = 60,
        priority: Priority = Priority.INTERACTIVE,
    ) -> str:
        """Write a job of URLs or media ids and publish its chunks of at most four items."""
        job_id, now = uuid.uuid4().hex, time.time()
        made = tuple(
            Item(index=index, modality=kind, source=_source(source), options=options or ItemOptions())
            for index, (kind, source) in enumerate(items)
        )
        record = JobRecord(
            job_id=job_id,
            model="demo",
            created=now,
            deadline=now + seconds,
            items=made,
            ids=(None,) * len(made),
            priority=priority,
        )
        self.store.jobs.create(record, {PartId(item.index, item.modality): PartRecord() for item in made})
        messages = [
            FetchMessage(
                job_id=job_id,
                model="demo",
                priority=record.priority,
                deadline=record.deadline,
                enqueued_at=now,
                items=made[at : at + CHUNK],
            )
            for at in range(0, len(made), CHUNK)
        ]
        self.send("fetch", messages)
        return job_id

    def encodes(self, job_id: str) -> list[EncodeMessage]:
        """The job's messages that wait on the encode queue."""
        with redis.Redis.from_url(self.broker.url) as client:
            lanes = [keys.lane("encode", step) for step in PRIORITY_STEPS.values()]
            texts = [text for lane in lanes for text in client.lrange(lane, 0, -1)]
        bodies = [json.loads(json.loads(text)["body"]) for text in texts]
        messages = [EncodeMessage.model_validate(body[0][0]) for body in bodies]
        return [message for message in messages if message.job_id == job_id]

    def wait_encodes(self, job_id: str, count: int, *, within: float = 30) -> list[EncodeMessage]:
        wait_until(lambda: len(self.encodes(job_id)) >= count, within=within, what=f"{count} encode messages")
        return self.encodes(job_id)

    def raw(self, message: EncodeMessage) -> np.ndarray[Any, Any]:
        """The bytes that the GPU worker would read."""
        return np.fromfile(self.store.blobs.path(message.raw.blob), np.uint8)
