"""Bytes inside requests: many times the blob directory goes through it, and nothing of them stays."""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path

import pytest

from api.encode.submission import LONGEST_START
from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import JobRecord
from epd.store.open import release_inline
from tests.unit.api.rest_kit import MakeRest, Rest

KIB = 1 << 10
#: A job that nobody works on yet.
WAITING = {"wait": 0, "status": 202}


def inline(number: int, size: int = 300 * KIB) -> dict[str, object]:
    return {"type": "image", "data": base64.b64encode(bytes([number]) * size).decode()}


def files_of(rest: Rest) -> list[str]:
    return sorted(path.name for path in Path(rest.settings.blob_dir).glob("[!.]*"))


def test_steady_traffic_never_fills_the_directory(make_rest: MakeRest) -> None:
    rest = make_rest(blob_bytes=1024 * KIB)  # two such pictures fit
    for number in range(12):
        assert rest.encode(inline(number))["state"] == "done"
    release_inline(rest.store, time.time())
    assert files_of(rest) == []
    assert rest.store.blobs.used_bytes() == 0


def test_what_open_jobs_hold_is_not_taken_from_them(make_rest: MakeRest) -> None:
    rest = make_rest(blob_bytes=1024 * KIB)
    rest.worker.go.clear()
    jobs = [rest.encode(inline(number), **WAITING)["job_id"] for number in range(2)]
    refused = rest.encode(inline(3), wait=0, status=503)
    assert refused["code"] == "blob_space_full"
    assert len(files_of(rest)) == 2
    assert rest.client.delete(f"/v1/jobs/{jobs[0]}").status_code == 200
    rest.encode(inline(3), **WAITING)
    assert len(files_of(rest)) == 2
    rest.worker.go.set()


def test_one_of_several_that_does_not_fit_leaves_none(make_rest: MakeRest) -> None:
    rest = make_rest(blob_bytes=1024 * KIB)
    rest.encode(*[inline(number) for number in range(3)], wait=0, status=503)
    assert files_of(rest) == []


def test_a_job_that_cannot_be_queued_leaves_nothing(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("down")

    monkeypatch.setattr(rest.store.jobs, "create", refuse)
    rest.encode(inline(1), wait=0, status=503)
    assert files_of(rest) == []


def test_a_job_that_names_the_digest_of_another_holds_its_bytes(rest: Rest) -> None:
    rest.worker.go.clear()
    digest = hashlib.sha256(bytes([1]) * 300 * KIB).hexdigest()
    first = rest.encode(inline(1), **WAITING)["job_id"]
    second = rest.encode({"type": "image", "media_id": digest}, **WAITING)["job_id"]
    rest.client.delete(f"/v1/jobs/{first}")
    assert release_inline(rest.store, time.time()) == 0
    assert files_of(rest) == [f"i-{digest}"]
    rest.client.delete(f"/v1/jobs/{second}")
    assert release_inline(rest.store, time.time()) == 1
    rest.worker.go.set()


def test_a_process_that_was_stopped_while_it_started_a_job_says_come_again(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes may have been freed meanwhile: the job must not fail as if its caller had named nothing."""
    create, jobs = rest.store.jobs.create, []

    def late(record: JobRecord, *args: object, **kwargs: object) -> None:
        jobs.append(record.job_id)
        create(record, *args, **kwargs)
        now = time.time() + LONGEST_START + 1
        monkeypatch.setattr("api.encode.submission.time.time", lambda: now)

    monkeypatch.setattr(rest.store.jobs, "create", late)
    refused = rest.encode(inline(1), wait=0, status=429)
    monkeypatch.undo()
    assert (refused["code"], refused["retryable"]) == ("overloaded", True)
    assert rest.worker.published == []
    assert files_of(rest) == []
    assert rest.client.get(f"/v1/jobs/{jobs[0]}").json()["state"] == "failed"
    assert rest.encode(inline(1))["state"] == "done"
