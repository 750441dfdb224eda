"""Bytes sent inside requests: kept while a job holds them, and removed soon after the last one."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from epd.contracts.errors import BlobMissing, BlobSpaceFull
from epd.contracts.job import PartId, PartRecord, State
from epd.contracts.media import Modality
from epd.settings import Settings
from epd.store.open import Store, release_inline
from epd.store.values import BlobKind, InlineHolder
from tests.contract.store_values import job_record
from tests.store_kit import MakeStore

MIB = 1 << 20
DATA = b"a photo"
DIGEST = hashlib.sha256(DATA).hexdigest()
ONE, TWO = "1" * 32, "2" * 32
PART = PartId(0, Modality.IMAGE)


def start(store: Store, job_id: str, data: bytes = DATA) -> str:
    """A job with one image that came with it, as the API starts it."""
    record = job_record(job_id)
    media_id = hashlib.sha256(data).hexdigest()
    store.blobs.keep_inline(media_id, job_id, data, record.deadline)
    store.jobs.create(record, {PART: PartRecord()})
    return media_id


def end(store: Store, job_id: str, state: State = State.CANCELLED) -> None:
    assert store.jobs.close(job_id, PartRecord(state=state))


def names(settings: Settings) -> list[str]:
    return sorted(file.name for file in settings.blob_dir.glob("[!.]*"))


def folders(settings: Settings) -> list[Path]:
    return list((settings.blob_dir / ".inline").glob("*"))


@pytest.mark.parametrize("state", [State.CANCELLED, State.EXPIRED, State.FAILED])
def test_bytes_live_as_long_as_their_job(store: Store, store_settings: Settings, state: State) -> None:
    media_id = start(store, ONE)
    ref = store.blobs.media(media_id)
    assert ref is not None
    store.blobs.free(ref)
    assert release_inline(store, time.time()) == 0
    assert store.blobs.path(ref).read_bytes() == DATA
    end(store, ONE, state)
    assert release_inline(store, time.time()) == 1
    assert store.blobs.media(media_id) is None
    with pytest.raises(BlobMissing):
        store.blobs.path(ref)
    assert (names(store_settings), folders(store_settings), store.blobs.used_bytes()) == ([], [], 0)


def test_the_last_of_two_jobs_frees_them(store: Store, store_settings: Settings) -> None:
    start(store, ONE)
    start(store, TWO)
    assert names(store_settings) == [f"i-{DIGEST}"]
    assert store.blobs.used_bytes() == len(DATA)
    end(store, ONE)
    assert release_inline(store, time.time()) == 0
    assert store.blobs.media(DIGEST) is not None
    end(store, TWO)
    assert release_inline(store, time.time()) == 1
    assert names(store_settings) == []


def test_a_job_that_names_them_holds_them_too(store: Store) -> None:
    start(store, ONE)
    assert store.blobs.join_inline(DIGEST, TWO, job_record(TWO).deadline)
    assert not store.blobs.join_inline("0" * 64, TWO, job_record(TWO).deadline)
    store.jobs.create(job_record(TWO), {PART: PartRecord()})
    end(store, ONE)
    assert release_inline(store, time.time()) == 0
    assert store.blobs.media(DIGEST) is not None


def test_an_upload_of_the_same_bytes_stays(store: Store, store_settings: Settings) -> None:
    start(store, ONE)
    with store.blobs.create(BlobKind.SOURCE) as (name, file):
        file.write(DATA)
    store.blobs.keep_media(name, DIGEST)
    start(store, TWO)
    end(store, ONE)
    end(store, TWO)
    assert release_inline(store, time.time()) == 1
    assert names(store_settings) == [f"m-{DIGEST}"]
    start(store, "3" * 32)
    assert names(store_settings) == [f"m-{DIGEST}"]


def test_a_job_that_was_never_written_keeps_nothing_for_long(store: Store, store_settings: Settings) -> None:
    store.blobs.keep_inline(DIGEST, ONE, DATA, time.time() + 3600)
    assert release_inline(store, time.time() + 10) == 0
    assert release_inline(store, time.time() + 70) == 1
    assert names(store_settings) == []


def test_a_job_past_its_time_keeps_nothing(store: Store) -> None:
    start(store, ONE)
    assert release_inline(store, job_record(ONE).deadline + 30) == 0
    assert release_inline(store, job_record(ONE).deadline + 70) == 1


def test_leftovers_of_a_kill_are_removed(store: Store, store_settings: Settings) -> None:
    start(store, ONE)
    holder = store_settings.blob_dir / ".inline" / DIGEST / ONE
    holder.unlink()  # killed after the last holder, before the file
    assert store.blobs.inline_holders(10) == [InlineHolder(DIGEST)]
    assert release_inline(store, time.time()) == 1
    holder.parent.mkdir(parents=True)  # killed after the file, before the folder
    assert release_inline(store, time.time()) == 0
    assert (names(store_settings), folders(store_settings)) == ([], [])


def test_the_sweep_spares_held_bytes(store: Store, store_settings: Settings) -> None:
    start(store, ONE)
    path = store_settings.blob_dir / f"i-{DIGEST}"
    os.utime(path, (time.time() - 1000,) * 2)
    assert store.blobs.sweep(older_than=500) == 0
    (store_settings.blob_dir / ".inline" / DIGEST / ONE).unlink()
    (store_settings.blob_dir / ".inline" / DIGEST).rmdir()
    assert store.blobs.sweep(older_than=500) == 1
    assert names(store_settings) == []


def test_bytes_that_do_not_fit_are_refused_and_leave_nothing(
    make_store: MakeStore, store_settings: Settings
) -> None:
    store = make_store(blob_bytes=MIB)
    start(store, ONE, bytes(MIB // 2))
    with pytest.raises(BlobSpaceFull):
        start(store, TWO, b"x" * (MIB // 2))
    assert len(names(store_settings)) == 1
    end(store, ONE)
    release_inline(store, time.time())
    start(store, TWO, b"x" * (MIB // 2))


def test_a_new_job_does_not_lose_its_bytes_to_the_end_of_another(store: Store) -> None:
    """Jobs with the same bytes come and go while others free them without a pause."""
    over = threading.Event()

    def release() -> None:
        while not over.is_set():
            release_inline(store, time.time())

    threads = [threading.Thread(target=release) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(150):
            start(store, f"{number:032x}")
            ref = store.blobs.media(DIGEST)
            assert ref is not None
            assert store.blobs.path(ref).read_bytes() == DATA
            end(store, f"{number:032x}")
    finally:
        over.set()
        for thread in threads:
            thread.join(10)
    release_inline(store, time.time())
    assert store.blobs.media(DIGEST) is None


def test_a_round_checks_a_bounded_number(store: Store) -> None:
    for number in range(5):
        start(store, ONE, bytes([number]))
    assert len(store.blobs.inline_holders(3)) == 3
    assert len(store.blobs.inline_holders(5)) == 5


def test_open_parts_are_counted(store: Store) -> None:
    other = PartId(1, Modality.IMAGE)
    store.jobs.create(job_record(ONE), {PART: PartRecord(), other: PartRecord()})
    assert store.jobs.open_parts([]) == []
    assert store.jobs.open_parts([ONE, "0" * 32]) == [2, None]
    store.jobs.finish(ONE, PART, PartRecord(state=State.CANCELLED))
    assert store.jobs.open_parts(["0" * 32, ONE]) == [None, 1]
    end(store, ONE)
    assert store.jobs.open_parts([ONE]) == [0]
