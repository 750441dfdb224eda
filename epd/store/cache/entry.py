"""The text of an index entry: what a server keeps of one embedding, as small as it can be read back whole.

JSON of the metadata with one letter a field, without what is at its default and without what the rest tells:
the key names the entry, and the reference (shape, dtype, size) follows from the metadata. So one string holds
both, they live and die together, and an image costs some 270 bytes instead of 616.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, chain, groupby, pairwise, repeat
from typing import Any

import orjson

from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.errors import NotFound
from epd.store.files.embedding_file import ITEM_BYTES
from epd.store.files.tiers import TierFiles
from epd.store.values import Indexed

#: Ticks a second beyond which times are left as they are; real files have at most a million.
_MOST_TICKS = 10_000_000
#: Times at either end that the ticks are guessed from. The guess is checked with every one.
_LOOKED_AT = 4
#: Ticks that a 64-bit float counts exactly. A broken file may have later times; they are left as they are.
_LAST_TICK = 1 << 53


def pack_times(times: Sequence[float]) -> Any:
    """Times in seconds as a JSON value: {"s": ticks a second, "r": [step, how often, ...]}, or a list."""
    scale = _scale_of(times)
    if any(abs(time) > _LAST_TICK / scale for time in times):
        return list(times)
    ticks = [round(time * scale) for time in times]
    if any(tick / scale != time for tick, time in zip(ticks, times, strict=True)):
        return list(times)
    steps = (after - before for before, after in pairwise([0, *ticks]))
    runs = ((step, sum(1 for _ in group)) for step, group in groupby(steps))
    return {"s": scale, "r": list(chain.from_iterable(runs))}


def unpack_times(value: Any) -> Any:
    """What ``pack_times`` was given; a list comes back as it is.

    Raises:
        ValueError: it is no packed value.
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
    """Ticks a second in which the times may be whole numbers; 1 where there is no such guess."""
    seen = [*times[:_LOOKED_AT], *times[-_LOOKED_AT:]]
    scale = math.lcm(*(Fraction(time).limit_denominator(1_000_000).denominator for time in seen))
    return scale if scale <= _MOST_TICKS else 1


#: A field without a letter keeps its name, so a new one needs none to be stored.
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
_OF_THE_KEY = "embedding_key"
_TIMES = "video_timestamps"


def entry_text(entry: Entry) -> str:
    """The text of an entry."""
    fields = entry.metadata.model_dump(
        mode="json", exclude_none=True, exclude_defaults=True, exclude={_OF_THE_KEY}
    )
    if _TIMES in fields:
        fields[_TIMES] = pack_times(fields[_TIMES])
    return orjson.dumps({_LETTERS.get(name, name): value for name, value in fields.items()}).decode()


def read_entry(key: str, text: str) -> Entry:
    """The entry of a key.

    Raises:
        ValueError: it cannot be read; another version of the code may have written it.
    """
    fields = orjson.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the entry is no JSON object")
    named = {_NAMES.get(letter, letter): value for letter, value in fields.items()}
    if _TIMES in named:
        named[_TIMES] = unpack_times(named[_TIMES])
    metadata = Metadata.model_validate({**named, _OF_THE_KEY: key})
    return Entry(ref=ref_of(metadata), metadata=metadata)


def ref_of(metadata: Metadata) -> EmbeddingRef:
    """The reference of an embedding, which its metadata tells; raises ``ValueError`` for an unknown dtype."""
    if metadata.dtype not in ITEM_BYTES:
        raise ValueError(f"dtype {metadata.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    shape = (metadata.token_count, metadata.hidden)
    nbytes = shape[0] * shape[1] * ITEM_BYTES[metadata.dtype]
    return EmbeddingRef(key=metadata.embedding_key, shape=shape, dtype=metadata.dtype, nbytes=nbytes)


logger = logging.getLogger(__name__)

LookAgain = Callable[[Sequence[str]], Sequence[Indexed]]


@dataclass(slots=True)
class Checked:
    """The entries in the order of the keys; ``bad`` cannot be used at all, ``lost`` are in L2 alone now."""

    entries: list[Entry | None] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def check_entries(
    keys: Sequence[str], known: Sequence[Indexed], files: TierFiles, look_again: LookAgain
) -> Checked:
    """Check what the index says of keys against the files; what cannot be used is None, and is logged.

    Rows, grid and token count agree by the validators of the contracts; a file has to be there, whole, of
    that key, shape and dtype, and with its checksum where it is read from L2. With two tiers the index is
    asked twice before an entry is given up: its file may have moved in between.
    """
    checked = Checked()
    for key, indexed in zip(keys, known, strict=True):
        entry = _checked(key, indexed, files, checked)
        if entry is None and files.tiers > 1 and indexed.text is not None:
            entry = _checked(key, look_again([key])[0], files, checked)
        if entry is None and indexed.text is not None:
            checked.bad.append(key)
        checked.entries.append(entry)
    return checked


def _checked(key: str, indexed: Indexed, files: TierFiles, checked: Checked) -> Entry | None:
    if indexed.text is None:
        return None
    try:
        entry = read_entry(key, indexed.text)
        if not files.check(entry.ref, indexed):
            checked.lost.append(key)
    except (ValueError, NotFound) as error:
        logger.warning("embedding %s is a miss: %s", key, error)
        return None
    return entry
