"""A worker in this process: it takes fetch messages and finishes their parts through the store's protocols.

The digest of a URL is the sha256 of its text. Words in a URL choose what happens: ``sound`` gives a video an
audio track, ``broken`` fails the item, ``mute-broken`` fails the audio track alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import numpy as np

from epd.config import Config
from epd.contracts.embedding import (
    AudioRules,
    AudioTrackInfo,
    EmbeddingRef,
    EncoderCard,
    Entry,
    ImageRules,
    Metadata,
    VideoRules,
)
from epd.contracts.errors import CorruptMedia
from epd.contracts.job import PartId, Stage
from epd.contracts.media import Item, Modality
from epd.contracts.messages import FetchMessage, Wanted
from epd.identity import content_digest
from epd.lookup import cards_of, look_up
from epd.store.files.embedding_format import header_of
from epd.store.open import Store
from epd.store.values import Claim, Completed, Heartbeat, Waiter

HIDDEN = 8
TOKENS = {Modality.IMAGE: 5, Modality.VIDEO: 12, Modality.AUDIO: 7}


CONFIG = {
    "default_model": "demo",
    "encoders": {name: {"family": name, "path": f"/models/{name}"} for name in ("eye", "ear", "cold")},
    "models": {
        "demo": {"image": "eye", "video": "eye", "audio": "ear"},
        "silent": {"image": "eye", "video": "eye"},
        "cold": {"image": "cold"},
    },
}


class WorkerDouble:
    """Works in a thread; ``hold`` keeps it from starting items, ``failing`` makes publishing raise."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store = store
        self.config = config
        self.published: list[FetchMessage] = []
        self.failing: Exception | None = None
        self.go = threading.Event()
        self.go.set()
        self._queue: queue.SimpleQueue[FetchMessage | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __call__(self, messages: Sequence[FetchMessage]) -> None:
        if self.failing is not None:
            raise self.failing
        for message in messages:
            self.published.append(message)
            self._queue.put(message)

    def stop(self) -> None:
        self.go.set()
        self._queue.put(None)
        self._thread.join(5)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            self.go.wait(30)
            for item in message.items:
                self._work(message, item)

    def _work(self, message: FetchMessage, item: Item) -> None:
        main = PartId(item.index, item.modality)
        if not self.store.jobs.advance(message.job_id, main, Stage.FETCH):
            return
        text = item.source.url or ""
        digest = item.source.media_id or content_digest(text.encode())
        _, model = self.config.model(message.model)
        cards = cards_of(model, self.store.cards)
        (found,) = look_up([(item, digest)], model=model, cards=cards, embeddings=self.store.embeddings)
        has_audio = found.audio is not None and "sound" in text
        tracks = {PartId(item.index, Modality.AUDIO)} if has_audio else set()
        for part in tracks | set(found.certain_parts[1:]):
            self.store.jobs.add_part(message.job_id, part)
        for part, record in found.finished.items():
            self.store.jobs.finish(message.job_id, part, record)
        for wanted in found.missing:
            if wanted.track is item.modality or has_audio:
                self._make(message, item, wanted, digest, has_audio)

    def _make(self, message: FetchMessage, item: Item, wanted: Wanted, digest: str, has_audio: bool) -> None:
        part = PartId(item.index, wanted.track)
        waiter = Waiter(message.job_id, part, message.model_copy(update={"items": (item,)}).to_json())
        if self.store.flights.claim(wanted.key, waiter) is not Claim.OWNED:
            return
        for stage in (Stage.DECODE, Stage.ENCODE):
            self.store.jobs.advance(message.job_id, part, stage)
        text = item.source.url or ""
        if "mute-broken" in text and wanted.track is Modality.AUDIO:
            self.store.flights.fail(wanted.key, CorruptMedia("the audio cannot be decoded"))
        elif "broken" in text and "mute-broken" not in text:
            self.store.flights.fail(wanted.key, CorruptMedia("the file cannot be decoded"))
        else:
            entry = self.put(wanted, digest, has_audio=has_audio if item.modality is Modality.VIDEO else None)
            timings = {"fetch": 0.01, "decode": 0.02, "forward": 0.03}
            self.store.flights.complete([Completed(entry, message.job_id, part, timings)])

    def put(
        self, wanted: Wanted, digest: str, *, has_audio: bool | None = None, dtype: str = "float32"
    ) -> Entry:
        """Write an embedding file; its values are those of ``rows``."""
        tokens = TOKENS[wanted.track]
        data = rows(wanted.key, tokens).astype("<f4").tobytes()
        if dtype == "bfloat16":
            data = (np.frombuffer(data, "<u4") >> 16).astype("<u2").tobytes()
        ref = EmbeddingRef(key=wanted.key, shape=(tokens, HIDDEN), dtype=dtype, nbytes=len(data))
        metadata = Metadata(
            embedding_key=wanted.key,
            content_digest=digest,
            modality=wanted.track,
            encoder=wanted.encoder,
            dtype=dtype,
            token_count=tokens,
            hidden=HIDDEN,
            audio=AudioTrackInfo(present=has_audio)
            if has_audio is not None and wanted.track is Modality.VIDEO
            else None,
        )
        self.store.embeddings.publish_file(ref, memoryview(data), header_of(metadata))
        return Entry(ref=ref, metadata=metadata)


def rows(key: str, tokens: int) -> np.ndarray:
    """The values of a double's embedding: exact in bfloat16, and other for each key."""
    first = int(key[:2], 16) % 16
    return ((np.arange(tokens * HIDDEN) + first) % 64).astype(np.float32).reshape(tokens, HIDDEN) / 4


def announce(store: Store) -> None:
    both = {"dtype": "float32", "preprocess_revision": "1", "hidden": 8}
    eye = EncoderCard(
        name="eye",
        family="eye",
        modalities=(Modality.IMAGE, Modality.VIDEO),
        weights_digest="a" * 64,
        options=("min_pixels", "max_pixels", "fps"),
        image=ImageRules(min_pixels=16, max_pixels=4096),
        video=VideoRules(fps=2, min_frames=2, max_frames=8),
        **both,
    )
    audio = AudioRules(sample_rate=16000)
    ear = EncoderCard(
        name="ear", family="ear", modalities=(Modality.AUDIO,), weights_digest="b" * 64, audio=audio, **both
    )
    for card in (eye, ear):
        store.cards.announce(card)


def beat(store: Store, kind: str, at: float, **fields: object) -> None:
    store.heartbeats.beat(Heartbeat(name=f"{kind}@here", kind=kind, host="here", pid=1, at=at, **fields))
