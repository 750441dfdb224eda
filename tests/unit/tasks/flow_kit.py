"""The flow in one process: a context over a store of its own, with a publisher that keeps messages."""

from __future__ import annotations

import io
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from epd.config import Config
from epd.contracts.embedding import (
    AudioRules,
    AudioTrackInfo,
    EmbeddingRef,
    EncoderCard,
    Entry,
    Metadata,
    VideoRules,
)
from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import JobRecord, PartId, PartRecord
from epd.contracts.media import Item, ItemOptions, Modality, Source
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage, Wanted
from epd.lookup import needs_of
from epd.settings import Settings
from epd.store.values import BlobKind, Completed
from tasks.flow.context import Context
from tasks.flow.decode import decode_item
from tasks.flow.fair_executor import FairExecutor
from tasks.flow.fetch import fetch_chunk
from tasks.flow.work import Work
from tests.store_kit import Stores
from workers.decode.decode import audio_track, decode
from workers.decode.ffmpeg import ffmpeg_binary
from workers.decode.probe import AudioTrack
from workers.limits import DecodeLimits

CONFIG = Config.model_validate(
    {
        "default_model": "demo",
        "encoders": {"eye": {"family": "dinov2", "path": "x"}, "ear": {"family": "whisper", "path": "y"}},
        "models": {
            "demo": {"image": "eye", "video": "eye", "audio": "ear"},
            "mute": {"image": "eye", "video": "eye"},
        },
    }
)

EYE = EncoderCard(
    name="eye",
    family="dinov2",
    modalities=(Modality.IMAGE, Modality.VIDEO),
    hidden=2,
    dtype="float32",
    weights_digest="a" * 64,
    preprocess_revision="1",
    video=VideoRules(fps=4, min_frames=2, max_frames=8),
)
EAR = EncoderCard(
    name="ear",
    family="whisper",
    modalities=(Modality.AUDIO,),
    hidden=2,
    dtype="float32",
    weights_digest="b" * 64,
    preprocess_revision="1",
    audio=AudioRules(sample_rate=16000),
)


def png(colour: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(file, "PNG")
    return file.getvalue()


def make_videos(folder: Path) -> dict[str, bytes]:
    """One second of video, with a tone (``loud``) and without (``silent``)."""
    image = ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=8:duration=1"]
    tone = ["-f", "lavfi", "-i", "sine=frequency=440:duration=1"]
    made = {}
    for name, inputs in {"loud": [*image, *tone], "silent": image}.items():
        path = folder / f"{name}.mp4"
        command = [str(ffmpeg_binary()), "-nostdin", "-y", *inputs, "-c:v", "mpeg4", str(path)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        made[name] = path.read_bytes()
    return made


def _arrived(message: Any) -> Any:
    return type(message).model_validate(json.loads(json.dumps(message.to_document())))


@dataclass
class Outbox:
    """A publisher that keeps the messages, or refuses them while ``down``."""

    fetches: list[FetchMessage] = field(default_factory=list)
    decodes: list[DecodeMessage] = field(default_factory=list)
    encodes: list[EncodeMessage] = field(default_factory=list)
    countdowns: list[float] = field(default_factory=list)
    down: bool = False

    def fetch(self, messages: Sequence[FetchMessage], *, countdown: float = 0.0) -> None:
        self._take(self.fetches, messages, countdown)

    def decode(self, messages: Sequence[DecodeMessage], *, countdown: float = 0.0) -> None:
        self._take(self.decodes, messages, countdown)

    def encode(self, messages: Sequence[EncodeMessage]) -> None:
        self._take(self.encodes, messages, 0.0)

    def _take(self, box: list[Any], messages: Sequence[Any], countdown: float) -> None:
        if self.down:
            raise StoreUnavailable("the broker is down")
        # As they arrive: what does not survive the trip through the broker is no message.
        box.extend(_arrived(message) for message in messages)
        self.countdowns += [countdown] * len(messages)


class InlineDecoder:
    """Decodes in this process, without the time limit."""

    def decode(self, path: Path, *, timeout: float, **how: Any) -> Any:
        return decode(path, **how)

    def audio_track(self, path: Path, *, limits: DecodeLimits, timeout: float) -> AudioTrack | None:
        return audio_track(path, limits=limits)


class Bench:
    """What fetch and decode processes work with. ``now`` is their clock."""

    def __init__(self, folder: Path, stores: Stores, **settings: Any) -> None:
        self.now = time.time()
        self.outbox = Outbox()
        self.settings = Settings(
            blob_dir=folder / "blobs", embedding_dir=folder / "embeddings",
            fetch_allow_hosts=("127.0.0.1",), fetch_retries=0, **settings,
        )  # fmt: skip
        self.store = stores.open(self.settings)
        self.decoder = InlineDecoder()
        self.context = Context(
            self.settings, CONFIG, self.store, self.outbox, lambda: self.now, cast(Any, self.decoder)
        )
        self.store.cards.announce(EYE)
        self.store.cards.announce(EAR)

    def upload(self, data: bytes) -> Source:
        import hashlib

        digest = hashlib.sha256(data).hexdigest()
        with self.store.blobs.create(BlobKind.SOURCE) as (name, file):
            file.write(data)
        self.store.blobs.keep_media(name, digest)
        return Source(media_id=digest)

    def job(self, *items: tuple[Modality, Source], model: str = "demo", **options: Any) -> FetchMessage:
        job_id = uuid.uuid4().hex
        made = tuple(
            Item(index=index, modality=kind, source=source, options=ItemOptions(**options))
            for index, (kind, source) in enumerate(items)
        )
        record = JobRecord(
            job_id=job_id,
            model=model,
            created=self.now,
            deadline=self.now + 60,
            items=made,
            ids=(None,) * len(made),
        )
        self.store.jobs.create(record, {PartId(item.index, item.modality): PartRecord() for item in made})
        return FetchMessage(
            job_id=job_id, model=model, priority=record.priority, deadline=record.deadline,
            enqueued_at=self.now - 1, items=made,
        )  # fmt: skip

    def fetch(self, message: FetchMessage) -> dict[str, float]:
        downloads = FairExecutor("download", 4)
        try:
            return fetch_chunk(self.context, message, Work(self.context, downloads))
        finally:
            downloads.close()

    def fetched(self, message: FetchMessage) -> DecodeMessage:
        """Fetch an item that nobody else makes; its decode message."""
        self.fetch(message)
        return self.outbox.decodes[-1]

    def decode(self, message: DecodeMessage) -> dict[str, float]:
        return decode_item(self.context, message)

    def code(self, message: FetchMessage, text: str) -> str | None:
        """The code of a part's error."""
        error = self.part(message, text).error
        return None if error is None else error.code

    def part(self, message: FetchMessage | DecodeMessage, text: str) -> PartRecord:
        view = self.store.jobs.view(message.job_id)
        assert view is not None
        return view.parts[text]

    def parts(self, message: FetchMessage) -> set[str]:
        view = self.store.jobs.view(message.job_id)
        assert view is not None
        return set(view.parts)

    def wanted(self, message: FetchMessage, track: Modality, digest: str) -> Wanted:
        _, model = CONFIG.model(message.model)
        needs = needs_of(message.items[0], digest, model=model, cards={
            Modality.IMAGE: EYE, Modality.VIDEO: EYE, Modality.AUDIO: EAR,
        })  # fmt: skip
        found = needs.audio if track is not message.items[0].modality else needs.main
        assert found is not None
        return found

    def complete(
        self, wanted: Wanted, digest: str, *, has_audio: bool | None = None, source_bytes: int | None = None
    ) -> None:
        """What a GPU worker does at the end of an encode."""
        rows = np.zeros((3, 2), np.float32)
        ref = EmbeddingRef(key=wanted.key, shape=(3, 2), dtype="float32", nbytes=rows.nbytes)
        metadata = Metadata(
            embedding_key=wanted.key, content_digest=digest, modality=wanted.track, encoder=wanted.encoder,
            dtype="float32", token_count=3, hidden=2,
            audio=None if has_audio is None else AudioTrackInfo(present=has_audio), source_bytes=source_bytes,
        )  # fmt: skip
        self.store.embeddings.publish_file(ref, memoryview(rows.tobytes()), {})
        done = Completed(Entry(ref=ref, metadata=metadata), uuid.uuid4().hex, PartId(0, wanted.track), {})
        self.store.flights.complete([done])

    def fill_blob_folder(self) -> None:
        """Leave no space for another blob."""
        self.settings.blob_dir.mkdir(exist_ok=True)
        (self.settings.blob_dir / "s-other").write_bytes(bytes(self.settings.blob_bytes + 1))

    def files(self, kind: str) -> list[str]:
        folder = self.settings.blob_dir
        return sorted(path.name for path in folder.glob(f"{kind}-*")) if folder.is_dir() else []


MakeBench = Callable[..., Bench]
