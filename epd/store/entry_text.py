"""The text of an index entry: what a server keeps of one embedding, as small as it can be read back whole.

JSON of the metadata with one letter a field, without what is at its default and without what the rest tells:
the key names the entry, and the reference (shape, dtype, size) follows from the metadata. So one string holds
both, they live and die together, and an image costs some 270 bytes instead of 616.
"""

from __future__ import annotations

import orjson

from epd.contracts.metadata import EmbeddingRef, Entry, Metadata
from epd.store.embedding_file import ITEM_BYTES
from epd.store.timestamps_text import pack_times, unpack_times

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
