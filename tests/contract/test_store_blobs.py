"""Blobs: limited in bytes, never visible half written, and uploads kept for a while."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epd.contracts.errors import BlobMissing, BlobSpaceFull, MediaTooLarge
from epd.contracts.media import BlobRef
from epd.settings import Settings
from epd.store.open import Store
from epd.store.values import BlobKind
from tests.contract.store_values import wait_until
from tests.store_kit import MakeStore

MIB = 1 << 20


def files_of(settings: Settings) -> list[str]:
    """Names of the blobs; the ledger's own folder begins with a dot."""
    return sorted(file.name for file in settings.blob_dir.glob("[!.]*"))


def write_blob(store: Store, data: bytes, kind: BlobKind = BlobKind.SOURCE) -> BlobRef:
    with store.blobs.create(kind, len(data)) as (name, file):
        file.write(data)
    return BlobRef(name=name, nbytes=len(data))


def upload(store: Store, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    store.blobs.keep_media(write_blob(store, data).name, digest)
    return digest


@pytest.mark.parametrize(("kind", "letter"), [(BlobKind.SOURCE, "s-"), (BlobKind.RAW, "r-")])
def test_a_blob_is_written_read_and_freed(store: Store, kind: BlobKind, letter: str) -> None:
    ref = write_blob(store, b"some bytes", kind)
    assert ref.name.startswith(letter)
    assert store.blobs.path(ref).read_bytes() == b"some bytes"
    store.blobs.free(ref)
    store.blobs.free(ref)
    with pytest.raises(BlobMissing, match="is gone"):
        store.blobs.path(ref)


def test_many_are_freed_though_one_cannot_be(store: Store, store_settings: Settings) -> None:
    refs = [write_blob(store, b"x" * 100) for _ in range(4)]
    kept = upload(store, b"kept")
    (store_settings.blob_dir / refs[1].name).unlink()
    (store_settings.blob_dir / refs[1].name).mkdir()
    (store_settings.blob_dir / refs[3].name).unlink()
    with pytest.raises(OSError, match=refs[1].name):
        store.blobs.free_all([*refs, BlobRef(name=f"m-{kept}", nbytes=4)])
    assert files_of(store_settings) == sorted([f"m-{kept}", refs[1].name])
    store.blobs.free_all([])


def test_the_space_of_many_blobs_is_released(store: Store) -> None:
    before = store.blobs.used_bytes()
    refs = [write_blob(store, b"x" * 1000) for _ in range(5)]
    store.blobs.free_all(refs[:4])
    assert store.blobs.used_bytes() == before + 1000


def test_a_blob_of_another_size_is_missing(store: Store) -> None:
    ref = write_blob(store, b"some bytes")
    with pytest.raises(BlobMissing, match="has 10 bytes"):
        store.blobs.path(ref.model_copy(update={"nbytes": 11}))


def test_a_failed_write_leaves_no_file(store: Store, store_settings: Settings) -> None:
    with pytest.raises(ZeroDivisionError), store.blobs.create(BlobKind.RAW) as (_, file):
        file.write(bytes(1 // len(b"")))
    assert files_of(store_settings) == []
    assert store.blobs.used_bytes() == 0


def test_a_full_device_is_a_full_blob_space(store: Store, store_settings: Settings) -> None:
    with pytest.raises(BlobSpaceFull), store.blobs.create(BlobKind.RAW):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError), store.blobs.create(BlobKind.RAW):
        raise PermissionError(errno.EACCES, "not about space")
    assert files_of(store_settings) == []


def test_a_blob_that_does_not_fit_is_refused_before_it_is_written(make_store: MakeStore) -> None:
    store = make_store(blob_bytes=MIB)
    first = write_blob(store, bytes(MIB // 2), BlobKind.RAW)
    with pytest.raises(BlobSpaceFull), store.blobs.create(BlobKind.RAW, MIB // 2 + 1):
        pytest.fail("it must not be given")
    store.blobs.free(first)
    write_blob(store, bytes(MIB), BlobKind.RAW)


def test_sources_leave_a_quarter_to_decoded_media(make_store: MakeStore) -> None:
    store = make_store(blob_bytes=MIB)
    write_blob(store, bytes(3 * MIB // 4))
    assert (store.blobs.room(BlobKind.SOURCE), store.blobs.room(BlobKind.RAW)) == (0, MIB // 4)
    with pytest.raises(BlobSpaceFull), store.blobs.create(BlobKind.SOURCE, 1):
        pytest.fail("it must not be given")
    write_blob(store, bytes(MIB // 4), BlobKind.RAW)


def test_room_grows_with_a_file_or_is_refused(make_store: MakeStore) -> None:
    store = make_store(blob_bytes=MIB)
    with store.blobs.create(BlobKind.RAW, 10) as (name, file):
        store.blobs.grow(name, MIB // 2)
        store.blobs.grow(name, 5)
        assert store.blobs.used_bytes() == MIB // 2
        with pytest.raises(MediaTooLarge):
            store.blobs.grow(name, MIB + 1)
        with store.blobs.create(BlobKind.SOURCE, 100), pytest.raises(BlobSpaceFull):
            store.blobs.grow(name, MIB)
        assert store.blobs.room(BlobKind.RAW) == MIB // 2
        file.write(b"short")
    assert store.blobs.used_bytes() == 5


def test_room_that_is_being_written_counts_as_used(make_store: MakeStore) -> None:
    store = make_store(blob_bytes=MIB)
    with store.blobs.create(BlobKind.RAW, MIB // 2):
        assert store.blobs.used_bytes() == MIB // 2
        with pytest.raises(BlobSpaceFull), store.blobs.create(BlobKind.RAW, MIB // 2 + 1):
            pytest.fail("it must not be given")
    assert store.blobs.used_bytes() == 0


def test_a_file_that_is_being_written_is_not_counted_twice(make_store: MakeStore) -> None:
    store = make_store(blob_bytes=MIB)
    with store.blobs.create(BlobKind.RAW, MIB // 2) as (_, file):
        file.write(bytes(MIB // 2))
        file.flush()
        store.blobs.sweep(3600)  # the next question counts the files again
        assert store.blobs.used_bytes() == MIB // 2
    assert store.blobs.used_bytes() == MIB // 2


def test_threads_together_stay_below_the_limit(make_store: MakeStore) -> None:
    store = make_store(blob_bytes=MIB)

    def write(_: int) -> int:
        try:
            return write_blob(store, bytes(MIB // 4), BlobKind.RAW).nbytes
        except BlobSpaceFull:
            return 0

    with ThreadPoolExecutor(8) as pool:
        written = sum(pool.map(write, range(16)))
    assert written == store.blobs.used_bytes() == MIB


def test_files_of_other_processes_are_counted(make_store: MakeStore, store_settings: Settings) -> None:
    store = make_store(blob_bytes=MIB)
    write_blob(store, b"x")
    (store_settings.blob_dir / "s-of-another-process").write_bytes(bytes(MIB))
    wait_until(lambda: store.blobs.used_bytes() == MIB + 1)


def test_an_upload_is_found_by_its_digest(store: Store) -> None:
    digest = upload(store, b"a photo")
    ref = store.blobs.media(digest)
    assert ref == BlobRef(name=f"m-{digest}", nbytes=7)
    assert store.blobs.path(ref).read_bytes() == b"a photo"
    store.blobs.free(ref)
    assert store.blobs.media(digest) == ref


def test_the_same_upload_twice_is_one_file(store: Store, store_settings: Settings) -> None:
    digest = upload(store, b"a photo")
    before = (store_settings.blob_dir / f"m-{digest}").stat().st_ino
    upload(store, b"a photo")
    assert files_of(store_settings) == [f"m-{digest}"]
    assert (store_settings.blob_dir / f"m-{digest}").stat().st_ino == before


def test_uploads_at_once_are_one_file(store: Store, store_settings: Settings) -> None:
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(lambda _: upload(store, b"a photo"), range(16)))
    assert files_of(store_settings) == [f"m-{digests.pop()}"]


def test_a_torn_upload_is_missing_and_replaced_by_the_next(store: Store, store_settings: Settings) -> None:
    digest = upload(store, b"a photo")
    (store_settings.blob_dir / f"m-{digest}").write_bytes(b"a ph")
    assert store.blobs.media(digest) is None
    upload(store, b"a photo")
    assert store.blobs.media(digest) == BlobRef(name=f"m-{digest}", nbytes=7)


@pytest.mark.parametrize("media_id", ["", "0" * 64, "../s-x", "Z" * 64])
def test_an_unknown_upload_is_none(store: Store, media_id: str) -> None:
    assert store.blobs.media(media_id) is None


def test_keeping_a_file_that_is_gone_is_an_error(store: Store) -> None:
    with pytest.raises(BlobMissing):
        store.blobs.keep_media("s-never-written", "0" * 64)


def test_an_unused_upload_expires_and_a_used_one_stays(make_store: MakeStore) -> None:
    store = make_store(media_ttl=1.0)
    used, unused = upload(store, b"used"), upload(store, b"unused")
    end = time.monotonic() + 1.3
    while time.monotonic() < end:
        assert store.blobs.media(used) is not None
        time.sleep(0.05)
    assert store.blobs.media(unused) is None


def test_the_sweep_takes_old_files_and_spares_uploads(store: Store, store_settings: Settings) -> None:
    old, new = write_blob(store, b"old"), write_blob(store, b"new", BlobKind.RAW)
    media = upload(store, b"a photo")
    _age(store_settings.blob_dir / old.name, 1000)
    _age(store_settings.blob_dir / f"m-{media}", 1000)
    assert store.blobs.sweep(older_than=500) == 1
    assert store.blobs.path(new).exists()
    assert store.blobs.media(media) is not None
    _age(store_settings.blob_dir / f"m-{media}", store_settings.media_ttl + 10)
    assert store.blobs.sweep(older_than=500) == 1
    assert store.blobs.media(media) is None


def test_sweeping_an_empty_place_is_nothing(store: Store) -> None:
    assert (store.blobs.sweep(0), store.blobs.used_bytes()) == (0, 0)


def _age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))
