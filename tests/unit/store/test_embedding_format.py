"""Embedding files: readable by the safetensors library, refused when anything is wrong."""

from __future__ import annotations

import json
import os
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from epd.contracts.embedding import EmbeddingRef, Metadata
from epd.contracts.errors import BlobSpaceFull, NotFound
from epd.contracts.media import Modality
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.files.embedding_format import (
    ITEM_BYTES,
    encode_header,
    header_of,
    open_embedding,
    write_embedding,
)

KEY = "c" * 64
ROWS, HIDDEN = 5, 3


def _ref(dtype: str = "float32", rows: int = ROWS) -> EmbeddingRef:
    nbytes = rows * HIDDEN * ITEM_BYTES[dtype]
    return EmbeddingRef(key=KEY, shape=(rows, HIDDEN), dtype=dtype, nbytes=nbytes)


def _data(ref: EmbeddingRef) -> bytes:
    return bytes(number % 251 for number in range(ref.nbytes))


@pytest.fixture
def folder(tmp_path: Path) -> EmbeddingFolder:
    return EmbeddingFolder(tmp_path / "root")


@pytest.mark.parametrize("dtype", list(ITEM_BYTES))
def test_the_library_reads_what_we_write(folder: EmbeddingFolder, dtype: str) -> None:
    ref = _ref(dtype)
    data = _data(ref)
    folder.publish(ref, memoryview(data), {"grid_thw": "1,2,2"})
    with safe_open(folder.path(KEY), framework="numpy") as file:
        assert list(file.keys()) == ["ec_cache"]
        assert file.metadata() == {"grid_thw": "1,2,2", "key": KEY, "tokens": "5"}
        assert file.get_slice("ec_cache").get_shape() == [ROWS, HIDDEN]
        if dtype != "bfloat16":
            assert file.get_tensor("ec_cache").tobytes() == data


@pytest.mark.parametrize("dtype", list(ITEM_BYTES))
def test_rows_are_byte_ranges_of_the_file(folder: EmbeddingFolder, dtype: str) -> None:
    ref = _ref(dtype)
    folder.publish(ref, memoryview(_data(ref)), {})
    file = open_embedding(folder.path(KEY))
    assert (file.shape, file.dtype, file.nbytes) == ((ROWS, HIDDEN), dtype, ref.nbytes)
    assert file.offset % 8 == 0
    whole = folder.path(KEY).read_bytes()
    row = HIDDEN * ITEM_BYTES[dtype]
    for start, stop in [(0, ROWS), (1, 4), (2, 2), (ROWS, ROWS)]:
        offset, nbytes = file.rows(start, stop)
        assert whole[offset : offset + nbytes] == _data(ref)[start * row : stop * row]
    for start, stop in [(-1, 2), (3, 2), (0, ROWS + 1)]:
        with pytest.raises(ValueError, match="rows"):
            file.rows(start, stop)


def test_a_header_that_disagrees_is_not_written() -> None:
    with pytest.raises(ValueError, match="float8"):
        encode_header((1, 1), "float8", 1, {})
    with pytest.raises(ValueError, match="are not a"):
        encode_header((2, 2), "float32", 12, {})


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=4))
def test_any_header_text_reads_back(header: dict[str, str]) -> None:
    text = encode_header((1, 2), "float16", 4, header)
    (length,) = struct.unpack("<Q", text[:8])
    assert len(text) == 8 + length
    assert len(text) % 8 == 0
    assert json.loads(text[8:])["__metadata__"] == header


def _file(tensors: dict[str, object], data: bytes) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + data


TENSOR = {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}
DAMAGED = {
    "empty": b"",
    "no header": b"\x00" * 7,
    "huge header": struct.pack("<Q", 1 << 60) + b"{}",
    "not json": struct.pack("<Q", 2) + b"]]",
    "not an object": struct.pack("<Q", 2) + b"[]",
    "not utf-8": struct.pack("<Q", 2) + b"\xff\xff",
    "no tensor": _file({}, b""),
    "other name": _file({"embedding": TENSOR}, bytes(8)),
    "two tensors": _file({"ec_cache": TENSOR, "more": TENSOR}, bytes(8)),
    "truncated": _file({"ec_cache": TENSOR}, bytes(7)),
    "too long": _file({"ec_cache": TENSOR}, bytes(9)),
    "three axes": _file({"ec_cache": TENSOR | {"shape": [1, 1, 2]}}, bytes(8)),
    "negative": _file({"ec_cache": TENSOR | {"shape": [-1, -2]}}, bytes(8)),
    "other dtype": _file({"ec_cache": TENSOR | {"dtype": "I64"}}, bytes(8)),
    "text as shape": _file({"ec_cache": TENSOR | {"shape": "12"}}, bytes(8)),
    "offset": _file({"ec_cache": TENSOR | {"data_offsets": [4, 12]}}, bytes(12)),
    "metadata is a list": _file({"__metadata__": [], "ec_cache": TENSOR}, bytes(8)),
}


@pytest.mark.parametrize("content", list(DAMAGED.values()), ids=list(DAMAGED))
def test_a_damaged_file_is_not_found(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(NotFound):
        open_embedding(path)


@given(st.binary(max_size=64))
def test_random_bytes_are_never_an_embedding(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(content)
    with pytest.raises(NotFound):
        open_embedding(path)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="No such file"):
        open_embedding(tmp_path / "nowhere")


def test_a_file_is_checked_against_its_reference(folder: EmbeddingFolder) -> None:
    ref = _ref()
    folder.publish(ref, memoryview(_data(ref)), {})
    assert folder.check(ref).header["key"] == KEY
    with pytest.raises(NotFound, match="not what the index says"):
        folder.check(_ref(rows=4))


def test_a_failed_write_leaves_nothing(folder: EmbeddingFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BlobSpaceFull):
        folder.publish(_ref(), memoryview(_data(_ref())), {})
    assert not folder.path(KEY).parent.exists()


def test_a_foreign_folder_below_the_root_is_left_alone(folder: EmbeddingFolder) -> None:
    root = folder.path(KEY).parent.parent
    (root / "lost+found").mkdir(parents=True)
    (root / "lost+found" / "encoder_cache.safetensors").write_bytes(b"mine")
    assert list(folder.untouched(older_than=-10)) == []
    assert (root / "lost+found" / "encoder_cache.safetensors").exists()


def test_the_header_names_what_the_tensor_is() -> None:
    metadata = Metadata(
        embedding_key=KEY,
        content_digest="d" * 64,
        modality=Modality.IMAGE,
        encoder="tower",
        dtype="float32",
        token_count=4,
        hidden=HIDDEN,
        grid_thw=(1, 4, 4),
        merge_size=2,
    )
    expected = {"content_digest": "d" * 64, "encoder": "tower", "modality": "image", "grid_thw": "1,4,4"}
    assert header_of(metadata) == expected
    assert "grid_thw" not in header_of(metadata.model_copy(update={"grid_thw": None}))


def test_written_bytes_end_with_the_data(tmp_path: Path) -> None:
    ref = _ref()
    with (tmp_path / "file").open("wb") as file:
        write_embedding(file.fileno(), ref, memoryview(_data(ref)), {})
    assert (tmp_path / "file").read_bytes().endswith(_data(ref))


def test_a_write_that_the_kernel_cuts_short_goes_on() -> None:
    """A pipe that is nearly full takes a part of what it is given."""
    ref = EmbeddingRef(key="c" * 64, shape=(64, 1024), dtype="float32", nbytes=1 << 18)
    data = random.Random(1).randbytes(ref.nbytes)
    reader, writer = os.pipe()
    received: list[bytes] = []

    def drain() -> None:
        while piece := os.read(reader, 1 << 12):
            received.append(piece)

    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(drain)
        write_embedding(writer, ref, memoryview(data), {})
        os.close(writer)
        drained.result(10.0)
    os.close(reader)
    assert b"".join(received).endswith(data)
