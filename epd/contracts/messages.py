"""The three messages of the pipeline. They carry references, never pixels, samples or tensors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from epd.contracts.embedding import AudioTrackInfo
from epd.contracts.job import Priority
from epd.contracts.media import BlobRef, Item, Modality, RawMedia
from epd.contracts.wire import Wire

#: The most times that an item goes back to ``fetch`` because a blob that a message names is gone.
MAX_ATTEMPTS = 3


class Envelope(Wire):
    """What every message carries. ``deadline`` and ``enqueued_at`` are Unix seconds."""

    version: Literal[1] = 1
    job_id: str
    model: str
    priority: Priority
    deadline: float
    enqueued_at: float
    attempt: int = Field(default=0, ge=0, le=MAX_ATTEMPTS)
    trace: dict[str, str] = Field(default_factory=dict)


class FetchMessage(Envelope):
    """Fetch the bytes of a chunk of items of one job."""

    items: tuple[Item, ...] = Field(min_length=1, max_length=64)


class Wanted(Wire):
    """An embedding to be made: its key, its track, and the encoder with the identity that it must have."""

    key: str
    track: Modality
    encoder: str
    encoder_identity: str


class DecodeMessage(Envelope):
    """Decode one item's bytes into raw media for each wanted track.

    Only decoding finds out whether a video has an audio track. So ``audio``, the embedding wanted of that
    track, is part of this message, and its encode message is published when the track is found.
    """

    item: Item
    digest: str
    blob: BlobRef
    main: Wanted | None = None
    audio: Wanted | None = None
    timings: dict[str, float] = Field(default_factory=dict)


class EncodeMessage(Envelope):
    """Encode the raw media of one part. ``source_bytes`` is the size of the file it was decoded from."""

    item: Item
    digest: str
    wanted: Wanted
    raw: RawMedia
    audio: AudioTrackInfo | None = None
    source_bytes: int | None = None
    timings: dict[str, float] = Field(default_factory=dict)
