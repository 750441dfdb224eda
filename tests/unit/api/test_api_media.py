"""``POST /v1/media``: raw and as a form, in pieces, limited in size and time, stored whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import Request

from api.requests import body_chunks
from epd.contracts.errors import InvalidRequest
from tests.unit.api.rest_kit import MakeRest, Rest

DATA = bytes(range(256)) * 9000  # 2.3 MB: more than one piece
DIGEST = hashlib.sha256(DATA).hexdigest()


def files_of(rest: Rest) -> list[str]:
    folder = Path(rest.settings.blob_dir)
    return sorted(path.name for path in folder.glob("[!.]*")) if folder.exists() else []


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def test_raw_upload_of_any_content_type(rest: Rest) -> None:
    for kind in (None, "image/png", "application/octet-stream", "junk"):
        answer = rest.client.post("/v1/media", content=DATA, headers={"Content-Type": kind} if kind else {})
        assert answer.status_code == 201
        assert answer.json() == {"media_id": DIGEST, "nbytes": len(DATA)}
    assert files_of(rest) == [f"m-{DIGEST}"]
    assert rest.client.post("/v1/media", content=pieces(DATA, 70_001)).json()["media_id"] == DIGEST
    assert rest.encode({"type": "image", "media_id": DIGEST})["state"] == "done"


@pytest.mark.parametrize("name", ["file", "x", "photo"])
def test_a_form_with_one_file(rest: Rest, name: str) -> None:
    answer = rest.client.post("/v1/media", files={name: ("a.png", DATA, "image/png")})
    assert (answer.status_code, answer.json()["media_id"]) == (201, DIGEST)
    assert files_of(rest) == [f"m-{DIGEST}"]


def test_a_form_whose_bytes_look_like_its_boundary(rest: Rest) -> None:
    data = b"\r\n--bound\r\n--boun" * 1000 + b"\r\n--bounD--\r\n"
    body = b'--boundary\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + data
    body += b"\r\n--boundary--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=boundary"}
    for size in (1, 7, 1000, len(body)):
        part = body if size > 1 else body[:400] and body
        answer = rest.client.post("/v1/media", content=pieces(part, max(size, 3)), headers=kind)
        assert answer.json()["media_id"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=b"),
        (b"junk", "multipart/form-data; boundary=b"),
        (b"--b\r\n\r\nabc", "multipart/form-data; boundary=b"),
        (b"--b\r\n\r\nabc\r\n--b\r\n\r\nd\r\n--b--\r\n", "multipart/form-data; boundary=b"),
        (b"--b\r\n\r\nabc\r\n--b--\r\n", "multipart/form-data"),
        (b"--b\r\n" + b"A: b\r\n" * 1000 + b"\r\nx\r\n--b--", "multipart/form-data; boundary=b"),
        (b"x", "multipart/form-data; boundary=" + "b" * 5000),
    ],
    ids=range(7),
)
def test_bad_forms(rest: Rest, body: bytes, kind: str) -> None:
    answer = rest.client.post("/v1/media", content=body, headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert files_of(rest) == []


def test_empty(rest: Rest) -> None:
    assert rest.client.post("/v1/media", content=b"").json()["code"] == "empty_media"
    assert rest.client.post("/v1/media", files={"f": ("x", b"")}).json()["code"] == "empty_media"
    assert files_of(rest) == []


def test_the_cap_holds_while_streaming(make_rest: MakeRest) -> None:
    rest = make_rest(max_image_bytes=1000, max_audio_bytes=1000, max_video_bytes=1000)
    for body in (b"x" * 1001, pieces(b"x" * 3000, 100)):
        answer = rest.client.post("/v1/media", content=body)
        assert (answer.status_code, answer.json()["code"]) == (413, "media_too_large")
    answer = rest.client.post("/v1/media", files={"f": ("x", b"x" * 1001)})
    assert answer.status_code == 413
    assert files_of(rest) == []
    assert rest.client.post("/v1/media", content=b"x" * 1000).status_code == 201


def test_no_room(make_rest: MakeRest) -> None:
    rest = make_rest(blob_bytes=1 << 20)
    answer = rest.client.post("/v1/media", content=DATA)
    assert (answer.status_code, answer.json()["code"]) == (503, "blob_space_full")
    assert answer.headers["Retry-After"]
    assert files_of(rest) == []


def test_a_body_that_never_ends_is_refused_in_time() -> None:
    pieces = 0

    async def receive() -> dict[str, object]:
        nonlocal pieces
        pieces += 1
        assert pieces < 1_000_000, "it is read for ever"
        return {"type": "http.request", "body": b"", "more_body": True}

    async def read() -> None:
        request = Request({"type": "http", "headers": []}, receive)
        async for _ in body_chunks(request, limit=1, seconds=0.05):
            pass

    with pytest.raises(InvalidRequest, match="too slowly"):
        asyncio.run(read())
