"""Entries as encoders make them, very many and cheap: one text for each kind, with digests of its own.

The mix: of ten, eight pictures at 1080p of Qwen2.5-VL, one window of sound of Whisper, and one video of half
a minute at two frames a second, whose timestamps are the largest thing in any entry.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from epd.contracts.media import Modality
from epd.contracts.metadata import AudioTrackInfo, Entry, Metadata
from epd.store.entry_text import entry_text, ref_of

_KEY, _DIGEST, _REVISION = "a" * 64, "b" * 64, "c" * 64
_FRAMES = 60
_PICTURES_OF_TEN, _SOUNDS_OF_TEN = 8, 1

_PICTURE = Metadata(
    embedding_key=_KEY,
    content_digest=_DIGEST,
    modality=Modality.IMAGE,
    encoder="qwen-vision",
    dtype="bfloat16",
    token_count=78 * 138 // 4,
    hidden=3584,
    grid_thw=(1, 78, 138),
    merge_size=2,
    original_size=(1920, 1080),
    source_frames=1,
    weights_digest=_REVISION,
    source_bytes=412_345,
)
_SOUND = Metadata(
    embedding_key=_KEY,
    content_digest=_DIGEST,
    modality=Modality.AUDIO,
    encoder="whisper-large",
    dtype="bfloat16",
    token_count=1500,
    hidden=1280,
    audio_feature_lengths=(2871,),
    audio_seconds=28.71,
    weights_digest=_REVISION,
    source_bytes=230_123,
)
_VIDEO = _PICTURE.model_copy(
    update={
        "modality": Modality.VIDEO,
        "token_count": _FRAMES // 2 * 26 * 46 // 4,
        "grid_thw": (_FRAMES // 2, 26, 46),
        "second_per_grid_ts": 1.001,
        "video_timestamps": tuple(frame * 15 * 1001 / 30000 for frame in range(_FRAMES)),
        "source_frames": 900,
        "source_bytes": 8_123_456,
        "audio": AudioTrackInfo(present=True, seconds=30.03),
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """What the index is given of one embedding. ``nbytes`` is the tensor's size."""

    key: str
    text: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Kind:
    text: str
    nbytes: int

    @classmethod
    def of(cls, metadata: Metadata) -> _Kind:
        entry = Entry(ref=ref_of(metadata), metadata=metadata)
        return cls(entry_text(entry), entry.ref.nbytes)


_KINDS = {metadata.modality: _Kind.of(metadata) for metadata in (_PICTURE, _SOUND, _VIDEO)}


def row_of(number: int, modality: Modality | None = None) -> Row:
    """The row of a number, always the same; of one kind, or of the mix."""
    kind = _KINDS[modality or _of_the_mix(number)]
    key = hashlib.sha256(b"%d" % number).hexdigest()
    digest = hashlib.sha256(b"digest %d" % number).hexdigest()
    return Row(key, kind.text.replace(_DIGEST, digest), kind.nbytes)


def _of_the_mix(number: int) -> Modality:
    place = number % 10
    if place < _PICTURES_OF_TEN:
        return Modality.IMAGE
    return Modality.AUDIO if place < _PICTURES_OF_TEN + _SOUNDS_OF_TEN else Modality.VIDEO
