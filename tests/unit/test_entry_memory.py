"""Entries that were read before: the same object while nothing changes, and never more than the limit."""

from __future__ import annotations

from pathlib import Path

from epd.contracts.media import Modality
from epd.contracts.metadata import EmbeddingRef, Entry, Metadata
from epd.store.embedding_folder import EmbeddingFolder
from epd.store.entry_memory import EntryMemory, EntryTexts
from epd.store.entry_text import entry_text


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
    entry, memory = made(folder, 1), EntryMemory(folder)
    key, text = entry.ref.key, entry_text(entry)
    first = memory.checked(key, text)
    assert first == entry
    assert memory.checked(key, text) is first
    other = entry_text(
        entry.model_copy(update={"metadata": entry.metadata.model_copy(update={"partial": True})})
    )
    changed = memory.checked(key, other)
    assert changed is not None
    assert changed.metadata.partial
    assert memory.checked(key, "no entry") is None
    folder.remove(key)
    assert memory.checked(key, text) is None
    made(folder, 1)
    assert memory.checked(key, text) == entry


def test_no_more_than_the_limit_and_the_last_used_stay(tmp_path: Path) -> None:
    folder = EmbeddingFolder(tmp_path)
    entries = [made(folder, number) for number in range(4)]
    memory = EntryMemory(folder, limit=2)
    first = memory.checked(entries[0].ref.key, entry_text(entries[0]))
    memory.checked(entries[1].ref.key, entry_text(entries[1]))
    assert memory.checked(entries[0].ref.key, entry_text(entries[0])) is first
    memory.checked(entries[2].ref.key, entry_text(entries[2]))
    assert memory.checked(entries[0].ref.key, entry_text(entries[0])) is first
    assert len(memory._known) == 2


def test_texts_are_made_once_for_an_object(tmp_path: Path) -> None:
    folder, asked = EmbeddingFolder(tmp_path), []

    def make(entry: Entry) -> str:
        asked.append(entry)
        return entry.ref.key

    texts = EntryTexts(make, limit=2)
    one, two, three = (made(folder, number) for number in (1, 2, 3))
    assert [texts.of(entry) for entry in (one, two, one)] == [one.ref.key, two.ref.key, one.ref.key]
    assert len(asked) == 2
    texts.of(one.model_copy())  # another object: it may say something else
    assert len(asked) == 3
    for entry in (three, two):
        texts.of(entry)
    assert len(texts._known) == 2
