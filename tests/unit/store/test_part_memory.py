"""Parts of entries that were checked before: the same object while nothing changes, and a bounded number."""

from __future__ import annotations

from pathlib import Path

from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.job import PartRecord
from epd.contracts.media import Modality
from epd.store.cache.async_cache import PartMemory
from epd.store.cache.entry import entry_text
from epd.store.files.embedding_folder import EmbeddingFolder


def made(folder: EmbeddingFolder, number: int) -> Entry:
    key = f"{number:064x}"
    ref = EmbeddingRef(key=key, shape=(2, 4), dtype="float32", nbytes=32)
    metadata = Metadata(
        embedding_key=key, content_digest=key, modality=Modality.IMAGE, encoder="eye", dtype="float32",
        token_count=2, hidden=4,
    )  # fmt: skip
    folder.publish(ref, memoryview(bytes(32)), {})
    return Entry(ref=ref, metadata=metadata)


def test_the_same_object_until_text_or_file_change(tmp_path: Path) -> None:
    folder = EmbeddingFolder(tmp_path)
    entry, memory = made(folder, 1), PartMemory(folder)
    key, text = entry.ref.key, entry_text(entry)
    first = memory.part(key, text)
    assert first is not None
    assert first.record == PartRecord.done(entry, cached=True)
    assert first.text == first.record.to_json()
    assert memory.part(key, text) is first
    other = entry_text(
        entry.model_copy(update={"metadata": entry.metadata.model_copy(update={"partial": True})})
    )
    changed = memory.part(key, other)
    assert changed is not None
    assert changed.record.metadata is not None
    assert changed.record.metadata.partial
    assert memory.part(key, "no entry") is None
    folder.remove(key)
    assert memory.part(key, text) is None
    made(folder, 1)
    again = memory.part(key, text)
    assert again is not None
    assert again.record == first.record


def test_no_more_than_the_limit_and_the_last_used_stay(tmp_path: Path) -> None:
    folder = EmbeddingFolder(tmp_path)
    entries = [made(folder, number) for number in range(4)]
    memory = PartMemory(folder, limit=2)
    first = memory.part(entries[0].ref.key, entry_text(entries[0]))
    memory.part(entries[1].ref.key, entry_text(entries[1]))
    assert memory.part(entries[0].ref.key, entry_text(entries[0])) is first
    memory.part(entries[2].ref.key, entry_text(entries[2]))
    assert memory.part(entries[0].ref.key, entry_text(entries[0])) is first
    assert memory._known.cache_info().currsize == 2
