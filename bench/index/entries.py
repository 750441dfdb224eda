"""Entries as encoders make them, many and cheap: one text for each kind, with a digest for each entry.

Of ten entries in the mix, eight are 1080p images of Qwen2.5-VL, one is a window of audio of Whisper, and one
a video of half a minute at two frames a second, whose timestamps are the largest part of any entry.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from epd.contracts.embedding import AudioTrackInfo, Entry, Metadata
from epd.contracts.media import Modality
from epd.store import keys as names
from epd.store.cache.entry import entry_text, ref_of
from epd.store.cache.index import EmbeddingIndex, TierLimits
from epd.store.connection import CHUNK_SIZE, Connection, chunks, script_command
from epd.store.scripts import Argument, Command, Script

_KEY, _DIGEST, _REVISION = "a" * 64, "b" * 64, "c" * 64
_FRAMES = 60
_IMAGES_OF_TEN, _AUDIOS_OF_TEN = 8, 1

_IMAGE = Metadata(
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
_AUDIO = Metadata(
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
_VIDEO = _IMAGE.model_copy(
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
    """What the index takes for one embedding. ``nbytes`` is the size of the tensor."""

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


_KINDS = {metadata.modality: _Kind.of(metadata) for metadata in (_IMAGE, _AUDIO, _VIDEO)}


def row_of(number: int, modality: Modality | None = None) -> Row:
    """The row with this number, always the same; of one kind, or of the mix."""
    kind = _KINDS[modality or _of_the_mix(number)]
    key = hashlib.sha256(b"%d" % number).hexdigest()
    digest = hashlib.sha256(b"digest %d" % number).hexdigest()
    return Row(key, kind.text.replace(_DIGEST, digest), kind.nbytes)


def _of_the_mix(number: int) -> Modality:
    place = number % 10
    if place < _IMAGES_OF_TEN:
        return Modality.IMAGE
    return Modality.AUDIO if place < _IMAGES_OF_TEN + _AUDIOS_OF_TEN else Modality.VIDEO


_DAY_MS = 86_400_000
_CALLS_AT_ONCE = 16
_NO_JOB = "0" * 32
_ANY_TOTAL = 1 << 60


class FilledIndex:
    """One database of a server."""

    def __init__(self, url: str) -> None:
        """Empty the database."""
        self.connection = Connection(url, timeout=60)
        self.connection.call("FLUSHDB", "SYNC")

    def fill(self, rows: Iterable[Row]) -> None:
        """Index embeddings as ``complete`` does."""
        source = iter(rows)
        while batch := list(islice(source, CHUNK_SIZE * _CALLS_AT_ONCE)):
            self.connection.pipe([self._call(chunk) for chunk in chunks(batch)])

    def _call(self, rows: Sequence[Row]) -> Command:
        arguments: list[Argument] = [_DAY_MS, _DAY_MS]
        for row in rows:
            arguments += [row.key, row.text, row.nbytes, _NO_JOB, "0/image", "{}", "{}"]
        return script_command(Script.COMPLETE, [], arguments)

    def used_bytes(self) -> int:
        """Memory of the server as a whole."""
        info = self.connection.call("INFO", "memory")
        fields = info if isinstance(info, dict) else dict(_fields(str(info)))
        return int(fields["used_memory"])

    def entries(self) -> int:
        """Files that L1 names."""
        return int(self.connection.call("ZCARD", names.LRU))

    def evict(self, nbytes: int) -> tuple[list[str], float]:
        """Take at least so many bytes out of L1; the keys, and the seconds that the call took."""
        limit = max(0, int(self.connection.call("GET", names.LRU_BYTES) or 0) - nbytes)
        command = EmbeddingIndex(self.connection, TierLimits(limit)).evict_command([], pinned_too=False)
        started = time.perf_counter()
        (evicted,) = self.connection.pipe([command])
        return evicted, time.perf_counter() - started

    def look_up(self, keys: list[str]) -> float:
        """Seconds that reading keys took."""
        index = EmbeddingIndex(self.connection, TierLimits(_ANY_TOTAL))
        started = time.perf_counter()
        index.read(keys)
        return time.perf_counter() - started

    def copy_to_l2(self, keys: Iterable[str], *, leave_l1: bool) -> None:
        """Have L2 name files too, or alone."""
        target = 0 if leave_l1 else _ANY_TOTAL
        source = iter(keys)
        while batch := list(islice(source, 512)):
            self.connection.pipe(
                [script_command(Script.DEMOTED, [], (key, key[:16], target, _ANY_TOTAL, 1)) for key in batch]
            )

    def close(self) -> None:
        """Empty the database and leave it."""
        self.connection.call("FLUSHDB")
        self.connection.close()


def _fields(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value
