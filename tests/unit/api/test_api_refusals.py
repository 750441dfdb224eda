"""What the API refuses: each fault gets a typed problem that names it, and changes nothing."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.api.rest_kit import MakeRest, Rest

CAT = {"type": "image", "url": "http://media.test/cat.png"}
PROBLEM = "application/problem+json"

ONE_ITEM: dict[str, tuple[dict[str, object], int, str, str]] = {
    "no source": ({"type": "image"}, 400, "invalid_request", "items[0]"),
    "two sources": (CAT | {"data": "QUJD"}, 400, "invalid_request", "exactly one"),
    "unknown field": (CAT | {"uri": "x"}, 400, "invalid_request", "items[0].uri"),
    "unknown type": (CAT | {"type": "text"}, 400, "invalid_request", "items[0].type"),
    "url a number": (CAT | {"url": 5}, 400, "invalid_request", "items[0].url"),
    "id a number": (CAT | {"id": 5}, 400, "invalid_request", "items[0].id"),
    "long id": (CAT | {"id": "x" * 257}, 400, "invalid_request", "items[0].id"),
    "unknown option": (CAT | {"options": {"max_pixel": 1}}, 400, "invalid_request", "max_pixel"),
    "option as text": (CAT | {"options": {"max_pixels": "64"}}, 400, "invalid_request", "max_pixels"),
    "option as bool": (CAT | {"options": {"max_pixels": True}}, 400, "invalid_request", "max_pixels"),
    "huge option": (CAT | {"options": {"max_pixels": 10**40}}, 400, "invalid_request", "max_pixels"),
    "video option": (CAT | {"options": {"fps": 2}}, 400, "invalid_request", "options.fps"),
    "no such option": (
        {"type": "video", "url": "http://h/v", "options": {"max_frames": 4}},
        400,
        "invalid_request",
        "options.max_frames",
    ),
    "audio option": (
        {"type": "audio", "url": "http://h/a", "options": {"max_pixels": 9}},
        400,
        "invalid_request",
        "encoder 'ear'",
    ),
    "track of an image": (CAT | {"options": {"audio_track": "none"}}, 400, "invalid_request", "audio_track"),
    "order": (CAT | {"options": {"min_pixels": 9, "max_pixels": 8}}, 400, "invalid_request", "above"),
    "bad base64": ({"type": "image", "data": "not!"}, 400, "invalid_request", "items[0].data"),
    "no bytes": ({"type": "image", "data": ""}, 422, "empty_media", "items[0].data"),
    "svg": ({"type": "image", "url": "data:image/svg+xml,x"}, 415, "unsupported_media", "items[0].url"),
    "bad media id": ({"type": "image", "media_id": "../x"}, 400, "invalid_request", "media_id"),
    "no upload": ({"type": "image", "media_id": "0" * 64}, 404, "not_found", "items[0].media_id"),
}

SOURCES = {
    "file:///etc/hostname": 403,
    "FILE:///etc/hostname": 403,
    "/etc/hostname": 403,
    "../x": 403,
    "ftp://h/x": 403,
    "gopher://h/x": 403,
    "iVBORw0KGgoAAAANSUhEUgAA": 403,
    "http://user:secret@h/x": 403,
    "http://user@h/x": 403,
    "http:///x": 400,
    "http://h:99999/x": 400,
    "http://h:x/": 400,
    "http://[::1/x": 400,
    "http://h/a b": 400,
    "http://h/\n": 400,
    "http://h/\u0000": 400,
    "": 403,
    "http://h/" + "x" * 9000: 400,
}


@pytest.mark.parametrize(("item", "status", "code", "named"), ONE_ITEM.values(), ids=ONE_ITEM)
def test_items(quiet: Rest, item: dict[str, object], status: int, code: str, named: str) -> None:
    answer = quiet.client.post("/v1/encode", json={"items": [item]})
    body = answer.json()
    assert answer.headers["content-type"] == PROBLEM
    assert (answer.status_code, body["code"], body["status"]) == (status, code, status), body
    assert named in body["detail"]
    assert body["retryable"] is False
    assert quiet.worker.published == []
    assert quiet.store.blobs.used_bytes() == 0


@pytest.mark.parametrize(("url", "status"), SOURCES.items(), ids=range(len(SOURCES)))
def test_sources_that_are_never_fetched(quiet: Rest, url: str, status: int) -> None:
    answer = quiet.client.post("/v1/encode", json={"items": [CAT, CAT | {"url": url}]})
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] == ("source_refused" if status == 403 else "invalid_request")
    assert "items[1].url" in answer.json()["detail"]
    for secret in ("hostname", "secret", "passwd", "iVBOR"):
        assert secret not in answer.text
    assert quiet.worker.published == []


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"items": []}, 400, "items"),
        ({"items": [CAT] * 257}, 400, "the limit is 256"),
        ({"items": [CAT] * 10_000}, 400, "10000"),
        ({"items": {}}, 400, "items"),
        ({"items": None}, 400, "items"),
        ({"items": [CAT], "model": "nope"}, 404, "nope"),
        ({"items": [CAT], "model": 5}, 400, "model"),
        ({"items": [{"type": "audio", "url": "http://h/a"}], "model": "silent"}, 404, "items[0]"),
        ({"items": [CAT], "wait": -1}, 400, "wait"),
        ({"items": [CAT], "wait": 1e9}, 400, "wait"),
        ({"items": [CAT], "wait": "5"}, 400, "wait"),
        ({"items": [CAT], "deadline": 0}, 400, "deadline"),
        ({"items": [CAT], "deadline": 1e9}, 400, "deadline"),
        ({"items": [CAT], "priority": "now"}, 400, "priority"),
        ({"items": [CAT], "surprise": 1}, 400, "surprise"),
        ({}, 400, "items"),
    ],
)
def test_requests(quiet: Rest, fields: dict[str, object], status: int, named: str) -> None:
    answer = quiet.client.post("/v1/encode", json=fields)
    assert answer.status_code == status, answer.text[:500]
    assert named in answer.json()["detail"]
    assert len(answer.content) < 2000
    assert quiet.worker.published == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"items": NaN}',
        b'{"items": [{"type": "image", "url": "http://h/x"}], "wait": NaN}',
        b'{"items": [{"type": "image", "url": "http://h/x"}], "wait": Infinity}',
        b'{"items": [{"type": "image", "url": "http://h/x"}], "wait": 1e999}',
        b'{"items": [{"type": "image", "url": "\\ud800"}]}',
        b"[" * 100_000,
        b'{"items": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"items": [{"type": "image", "url": "http://h/x"}], "wait": ' + b"9" * 5000 + b"}",
    ],
    ids=range(14),
)
def test_hostile_bodies(quiet: Rest, body: bytes) -> None:
    answer = quiet.client.post("/v1/encode", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text[:300]
    assert quiet.worker.published == []


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda leaf: (
            st.lists(leaf, max_size=3)
            | st.dictionaries(
                st.sampled_from(["items", "type", "url", "options", "wait", "x"]), leaf, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_is_a_server_fault(quiet: Rest, body: object) -> None:
    answer = quiet.client.post("/v1/encode", content=json.dumps(body))
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == PROBLEM


def test_a_large_junk_uri_is_not_repeated(rest: Rest, caplog: pytest.LogCaptureFixture) -> None:
    item = {"type": "image", "url": "data:image/png;base64," + "!junk!" * 900_000}
    answer = rest.client.post("/v1/encode", json={"items": [item]})
    assert answer.status_code == 400
    assert len(answer.content) < 2000
    assert max(len(record.getMessage()) for record in caplog.records) < 2000


def test_body_and_item_limits(make_rest: MakeRest) -> None:
    rest = make_rest(max_body_bytes=10_000, max_image_bytes=1000)
    over = {"type": "image", "data": base64.b64encode(b"x" * 1001).decode()}
    answer = rest.client.post("/v1/encode", json={"items": [over]})
    assert (answer.status_code, answer.json()["code"]) == (413, "media_too_large")
    for content in (b"x" * 10_001, iter([b"x" * 6000] * 2)):
        answer = rest.client.post("/v1/encode", content=content)
        assert (answer.status_code, answer.json()["code"]) == (413, "media_too_large")
    answer = rest.client.post("/v1/encode", content=b"{}", headers={"Content-Length": "1" * 30})
    assert answer.status_code == 413
    assert rest.services.bodies.held == 0
    with rest.services.bodies.hold(rest.services.bodies.limit):
        answer = rest.client.post("/v1/encode", json={"items": [CAT]})
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")


def test_an_upload_too_large_for_its_type(make_rest: MakeRest) -> None:
    rest = make_rest(max_image_bytes=100)
    media_id = rest.client.post("/v1/media", content=b"x" * 101).json()["media_id"]
    item = {"type": "image", "media_id": media_id}
    assert rest.client.post("/v1/encode", json={"items": [item]}).status_code == 413
    assert rest.encode(item | {"type": "audio"})["state"] == "done"


def test_no_room_for_inline_bytes(make_rest: MakeRest) -> None:
    rest = make_rest(blob_bytes=1 << 20)
    item = {"type": "image", "data": base64.b64encode(b"x" * (1 << 20) + b"x").decode()}
    answer = rest.client.post("/v1/encode", json={"items": [item]})
    assert (answer.status_code, answer.json()["code"]) == (503, "blob_space_full")
    assert answer.json()["retryable"] is True
    assert rest.worker.published == []


def test_an_encoder_that_was_never_announced(quiet: Rest) -> None:
    answer = quiet.client.post("/v1/encode", json={"items": [CAT], "model": "cold"})
    assert (answer.status_code, answer.json()["code"]) == (503, "encoder_not_ready")
    assert answer.headers["Retry-After"] == "5"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/encode", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/" + "0" * 32, 404, "not_found"),
        ("DELETE", "/v1/jobs/" + "0" * 32, 404, "not_found"),
        ("GET", "/v1/jobs/" + "0" * 32 + "/events", 404, "not_found"),
        ("GET", "/v1/jobs/x", 400, "invalid_request"),
        ("GET", "/v1/jobs/" + "0" * 32 + "?wait=-1", 400, "invalid_request"),
        ("GET", "/v1/jobs/" + "0" * 32 + "?wait=nan", 400, "invalid_request"),
        ("GET", "/v1/jobs/" + "0" * 32 + "?wait=1e9", 400, "invalid_request"),
        ("GET", "/v1/embeddings/" + "0" * 64, 404, "not_found"),
        ("GET", "/v1/embeddings/..%2f..%2fetc", 404, "not_found"),
        ("GET", "/v1/embeddings/x", 400, "invalid_request"),
        ("GET", "/v1/metadata/" + "0" * 64, 404, "not_found"),
    ],
)
def test_routes(quiet: Rest, method: str, path: str, status: int, code: str) -> None:
    answer = quiet.client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["X-Request-Id"]
