"""The text of an index entry: all that the server keeps of one embedding, in few bytes.

The text is JSON of the metadata, with one letter per field and without defaults. The key names the entry, and
the reference (shape, dtype, size) follows from the metadata. So one string holds reference and metadata, they
live and die together, and an image takes some 270 bytes instead of 616.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, chain, groupby, pairwise, repeat
from typing import Any

import orjson

from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.store.files.embedding_format import ITEM_BYTES

#: A field without a letter keeps its name, so a new field can be stored without one.
_LETTERS = {
    "content_digest": "d",
    "modality": "m",
    "encoder": "e",
    "dtype": "t",
    "token_count": "n",
    "hidden": "h",
    "grid_thw": "g",
    "merge_size": "s",
    "prefix_tokens": "p",
    "second_per_grid_ts": "i",
    "video_timestamps": "v",
    "audio_feature_lengths": "f",
    "audio_seconds": "l",
    "deepstack_levels": "k",
    "original_size": "o",
    "source_frames": "c",
    "partial": "b",
    "audio": "a",
    "weights_digest": "w",
    "source_bytes": "y",
}
_NAMES = {letter: name for name, letter in _LETTERS.items()}
_KEY = "embedding_key"
_TIMES = "video_timestamps"

#: Most ticks per second; times that need more are not packed. Real files have at most a million.
_MAX_SCALE = 10_000_000
#: Times at either end from which the ticks per second are guessed. The guess is checked with all times.
_SAMPLES = 4
#: Ticks that a 64-bit float counts exactly. A broken file may have later times, which are not packed.
_MAX_TICK = 1 << 53


def entry_text(entry: Entry) -> str:
    """Write an entry as text."""
    fields = entry.metadata.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={_KEY})
    if _TIMES in fields:
        fields[_TIMES] = pack_times(fields[_TIMES])
    return orjson.dumps({_LETTERS.get(name, name): value for name, value in fields.items()}).decode()


def read_entry(key: str, text: str) -> Entry:
    """Read the entry of an embedding key.

    Raises:
        ValueError: the text cannot be read. Another version of the code may have written it.
    """
    fields = orjson.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the entry is no JSON object")
    named = {_NAMES.get(letter, letter): value for letter, value in fields.items()}
    if _TIMES in named:
        named[_TIMES] = unpack_times(named[_TIMES])
    metadata = Metadata.model_validate({**named, _KEY: key})
    return Entry(ref=ref_of(metadata), metadata=metadata)


def ref_of(metadata: Metadata) -> EmbeddingRef:
    """Derive the reference of an embedding from its metadata.

    Raises:
        ValueError: the dtype is unknown.
    """
    if metadata.dtype not in ITEM_BYTES:
        raise ValueError(f"dtype {metadata.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    shape = (metadata.token_count, metadata.hidden)
    nbytes = shape[0] * shape[1] * ITEM_BYTES[metadata.dtype]
    return EmbeddingRef(key=metadata.embedding_key, shape=shape, dtype=metadata.dtype, nbytes=nbytes)


def pack_times(times: Sequence[float]) -> Any:
    """Pack times in seconds into runs of equal steps, if that is exact.

    Returns:
        ``{"s": ticks per second, "r": [step, count, step, count, ...]}``, or else the times as a list.
    """
    scale = _scale_of(times)
    if any(abs(time) > _MAX_TICK / scale for time in times):
        return list(times)
    ticks = [round(time * scale) for time in times]
    if any(tick / scale != time for tick, time in zip(ticks, times, strict=True)):
        return list(times)
    steps = (after - before for before, after in pairwise([0, *ticks]))
    runs = ((step, sum(1 for _ in group)) for step, group in groupby(steps))
    return {"s": scale, "r": list(chain.from_iterable(runs))}


def unpack_times(value: Any) -> Any:
    """Do the inverse of ``pack_times``. A list is returned as it is.

    Raises:
        ValueError: the value is not a packed one.
    """
    if not isinstance(value, dict):
        return value
    try:
        scale, runs = value["s"], value["r"]
        steps = chain.from_iterable(
            repeat(step, count) for step, count in zip(runs[::2], runs[1::2], strict=True)
        )
        return [tick / scale for tick in accumulate(steps)]
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"timestamps cannot be read: {error}") from error


def _scale_of(times: Sequence[float]) -> int:
    """Guess the ticks per second that make all times whole numbers; 1 if there is no good guess."""
    samples = [*times[:_SAMPLES], *times[-_SAMPLES:]]
    scale = math.lcm(*(Fraction(time).limit_denominator(1_000_000).denominator for time in samples))
    return scale if scale <= _MAX_SCALE else 1
