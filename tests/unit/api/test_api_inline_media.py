"""Media inside requests: data URIs, base64, and the space that their bytes take in the blob folder."""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.encode.sources import decode_base64, decode_data_uri, is_data_uri
from api.encode.submission import LONGEST_START
from epd.contracts.errors import CallerFault, EmptyMedia, InvalidRequest, StoreUnavailable, UnsupportedMedia
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
    rest = make_rest(blob_bytes=1024 * KIB)  # two such images fit
    for number in range(12):
        assert rest.encode(inline(number))["state"] == "done"
    release_inline(rest.store, time.time())
    assert files_of(rest) == []
    assert rest.store.blobs.used_bytes() == 0


def test_bytes_of_open_jobs_are_kept(make_rest: MakeRest) -> None:
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


def test_one_item_that_does_not_fit_leaves_none(make_rest: MakeRest) -> None:
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


def test_a_job_whose_start_took_too_long_is_refused_as_overloaded(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes may have been freed by then: the job must not fail as if its caller had sent none."""
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


# Bytes whose base64 has "+", "/", and one "=" of padding.
DATA = bytes(range(256)) + b"\xfb\xff\xfe" * 3 + b"\x01"
PLAIN = base64.b64encode(DATA).decode()
URL_SAFE = base64.urlsafe_b64encode(DATA).decode()
FOLDED = "\r\n".join(PLAIN[at : at + 76] for at in range(0, len(PLAIN), 76))

ACCEPTED = {
    "plain": f"data:image/png;base64,{PLAIN}",
    "param": f"data:image/png;charset=utf-8;base64,{PLAIN}",
    "two-params": f"data:image/png;name=a.png;charset=utf-8;base64,{PLAIN}",
    "upper": f"DATA:IMAGE/PNG;BASE64,{PLAIN}",
    "no-mime": f"data:;base64,{PLAIN}",
    "folded": f"data:image/png;base64,{FOLDED}",
    "url-safe": f"data:image/png;base64,{URL_SAFE}",
    "no-padding": f"data:image/png;base64,{PLAIN.rstrip('=')}",
    "pct-padding": f"data:image/png;base64,{quote(PLAIN, safe='')}",
    "wrong-mime": f"data:image/jpeg;base64,{PLAIN}",
}
REFUSED: dict[str, tuple[str, type[CallerFault]]] = {
    "spaces-for-plus": (f"data:image/png;base64,{PLAIN.replace('+', ' ')}", InvalidRequest),
    "no-base64-mark": (f"data:image/png,{PLAIN}", InvalidRequest),
    "base64-as-mime": (f"data:base64,{PLAIN}", InvalidRequest),
    "no-comma": (f"data:image/png;base64{PLAIN}", InvalidRequest),
    "empty": ("data:image/png;base64,", EmptyMedia),
    "only-padding": ("data:image/png;base64,====", InvalidRequest),
    "junk": ("data:image/png;base64,not!!!base64!!!", InvalidRequest),
    "text-type": ("data:text/plain;base64,aGVsbG8=", UnsupportedMedia),
    "svg-text": ("data:image/svg+xml,%3Csvg%3E", UnsupportedMedia),
    "cut": (f"data:image/png;base64,{PLAIN[: len(PLAIN) // 2 // 4 * 4 + 2]}", InvalidRequest),
    "one-left-over": (f"data:image/png;base64,{PLAIN[:41]}", InvalidRequest),
    "mixed": ("data:image/png;base64,ab+_", InvalidRequest),
    "after-padding": ("data:image/png;base64,QQ==QQ==", InvalidRequest),
    "unicode": ("data:image/png;base64,QUJD\u00e9", InvalidRequest),
    "nul": ("data:image/png;base64,QUJD%00", InvalidRequest),
}


@pytest.mark.parametrize("uri", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_forms_give_the_same_bytes(uri: str) -> None:
    assert is_data_uri(uri)
    assert decode_data_uri(uri) == DATA


@pytest.mark.parametrize(("uri", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_forms_give_a_typed_error(uri: str, error: type[CallerFault]) -> None:
    with pytest.raises(error):
        decode_data_uri(uri)


def test_plain_base64_follows_the_same_rules() -> None:
    assert decode_base64(FOLDED) == decode_base64(URL_SAFE) == DATA
    with pytest.raises(InvalidRequest):
        decode_base64("=" + PLAIN)
    with pytest.raises(EmptyMedia):
        decode_base64("")


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_come_back(data: bytes) -> None:
    assert decode_base64(base64.b64encode(data).decode()) == data
    assert decode_base64(base64.urlsafe_b64encode(data).decode().rstrip("=")) == data


@given(st.text(max_size=60))
def test_any_text_is_bytes_or_a_caller_fault(text: str) -> None:
    for decode in (decode_base64, lambda value: decode_data_uri("data:image/png;base64," + value)):
        try:
            decode(text)
        except CallerFault:
            continue
