"""What an index entry has to stand before it counts as a hit (DESIGN 4): checked at every read."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from epd.contracts.errors import NotFound
from epd.contracts.metadata import EmbeddingRef, Entry, Metadata
from epd.store.embedding_folder import EmbeddingFolder

logger = logging.getLogger(__name__)


def checked_entry(key: str, ref: str | None, metadata: str | None, folder: EmbeddingFolder) -> Entry | None:
    """The entry of two JSON texts, or None when anything disagrees; that is logged.

    Rows, grid and token count agree by the validators of the contracts; the file has to be there, whole,
    of that key, shape and dtype.
    """
    if ref is None or metadata is None:
        _log_miss(key, "reference or metadata is missing")
        return None
    try:
        entry = Entry(ref=EmbeddingRef.from_json(ref), metadata=Metadata.from_json(metadata))
        folder.check(entry.ref)
    except (ValidationError, NotFound) as error:
        _log_miss(key, str(error))
        return None
    if not key == entry.ref.key == entry.metadata.embedding_key:
        _log_miss(key, "it is of another key")
        return None
    return entry


def _log_miss(key: str, why: str) -> None:
    logger.warning("embedding %s is a miss: %s", key, why)
