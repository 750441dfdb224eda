"""The client's parts that need no server: items, calls, tensors."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from epd.client import AsyncClient, Client, Unreachable, calls
from epd.client.calls import Answer
from epd.client.payloads import guess_type, prepare, read_embedding, read_slices
from epd.contracts import errors
from epd.contracts.job import State

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("a.JPG", "image"),
        ("dir/b.webp", "image"),
        ("c.mkv", "video"),
        ("https://h.example/talk.mp4?x=.png", "video"),
        ("d.opus", "audio"),
        ("data:audio/wav;base64,AAAA", "audio"),
    ],
)
def test_the_type_follows_the_name(name: str, type_: str) -> None:
    assert guess_type(name) == type_


@pytest.mark.parametrize("name", ["noend", "a.pdf", "data:text/html,x", "https://h.example/"])
def test_an_unknown_type_must_be_given(name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="cannot tell the type"):
        guess_type(name)


def test_a_path_is_uploaded_and_a_url_is_not(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"x")
    assert prepare(photo).upload == photo
    assert prepare(str(photo)).body == {"type": "image"}
    url = prepare("https://h.example/photo.png")
    assert (url.upload, url.body) == (None, {"type": "image", "url": "https://h.example/photo.png"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"gone\.png"):
        prepare(tmp_path / "gone.png")
    with pytest.raises(errors.InvalidRequest, match="no such file"):
        prepare(tmp_path / "gone")  # and its type is not asked for
    with pytest.raises(errors.InvalidRequest, match="is a folder"):
        prepare(tmp_path)


@pytest.mark.parametrize("name", ["http:.png", "data:x.png", "https.png"])
def test_a_file_whose_name_looks_like_a_url_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"x")
    assert prepare(name).upload == Path(name)


def test_impossible_names_are_the_callers_fault() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"cannot read aaaa.*File name too long"):
        prepare("a" * 300 + ".png")
    with pytest.raises(errors.InvalidRequest, match="not a URL"):
        prepare("http://h.example/\udcff.png")


def test_an_invalid_server_url_is_the_callers_fault() -> None:
    for url in ("http://[::1", "localhost:8000", "127.0.0.1:8000", "ftp://h.example", "http://", ""):
        for client in (Client, AsyncClient):
            with pytest.raises(errors.InvalidRequest, match="not a URL"):
                client(url)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b""])
def test_an_answer_of_another_server_is_reported(body: bytes) -> None:
    with pytest.raises(Unreachable, match="epd server"):
        calls.get_status().read(Answer(200, {}, body))


def test_a_mapping_keeps_its_fields_and_bytes_become_base64() -> None:
    body = prepare({"type": "audio", "data": b"\x00\xff", "id": "a1"}).body
    assert base64.b64decode(body["data"]) == b"\x00\xff"
    assert body["id"] == "a1"


def problem(status: int, code: str, detail: str = "why") -> Answer:
    fields = {"code": code, "detail": detail, "status": status, "title": "t"}
    return Answer(status, {}, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unknown_model", errors.UnknownModel),
        ("media_too_large", errors.MediaTooLarge),
        ("overloaded", errors.Overloaded),
        ("source_unavailable", errors.SourceFault),
        ("internal", errors.EpdError),
        ("of_a_later_version", errors.EpdError),
    ],
)
def test_a_problem_becomes_the_error_of_its_code(code: str, kind: type[errors.EpdError]) -> None:
    with pytest.raises(kind, match="why"):
        calls.raise_for_problem(problem(400, code))


def test_an_answer_that_is_no_problem_document_is_still_an_error() -> None:
    with pytest.raises(errors.EpdError, match="HTTP 502: bad gateway"):
        calls.raise_for_problem(Answer(502, {}, b"bad gateway"))


def test_tries_are_bounded_and_follow_retry_after() -> None:
    busy = Answer(429, {"Retry-After": "3"}, b"")
    assert calls.retry_delay(busy, 0) == 3
    assert calls.retry_delay(Answer(429, {"Retry-After": "86400"}, b""), 0) == 10
    assert calls.retry_delay(Answer(503, {}, b""), 1) == calls.RETRY_DELAYS[1]
    assert calls.retry_delay(busy, len(calls.RETRY_DELAYS)) is None
    assert calls.retry_delay(Answer(400, {}, b""), 0) is None


def test_events_are_read_and_comments_passed_over() -> None:
    event = '{"job_id":"j","index":0,"type":"image","state":"done","job_state":"done"}'
    lines = [": keep-alive", "", "event: item", f"data: {event}", ""]
    assert [each.state for each in calls.read_events(iter(lines))] == [State.DONE]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_embedding_is_read_without_loss(dtype: torch.dtype) -> None:
    rows = torch.randn(5, 7).to(dtype)
    body = save({"ec_cache": rows})
    found = read_embedding(body, "numpy")
    assert found.shape == (5, 7)
    assert np.array_equal(found.astype(np.float32), rows.float().numpy())
    assert torch.equal(read_embedding(body, "torch"), rows)
    assert read_embedding(body, "safetensors") == body


def test_a_body_without_the_tensor_is_refused() -> None:
    with pytest.raises(errors.Internal, match="ec_cache"):
        read_embedding(save({"other": torch.zeros(1)}), "numpy")


def test_slices_are_read_in_their_order() -> None:
    rows = [torch.randn(count, 4) for count in (3, 1, 2)]
    body = save({str(number): each for number, each in reversed(list(enumerate(rows)))})
    for found, wanted in zip(read_slices(body, 3, "numpy"), rows, strict=True):
        assert np.array_equal(found, wanted.numpy())
    assert all(map(torch.equal, read_slices(body, 3, "torch"), rows))
    with pytest.raises(errors.Internal, match="'3'"):
        read_slices(body, 4, "numpy")


def test_no_slices_need_no_server() -> None:
    """A prompt that the prefix cache covers whole."""
    with Client("http://127.0.0.1:9") as client:
        assert client.slices([]) == []
        assert client.slices([], form="torch") == []
        assert load(client.slices([], form="safetensors")) == {}
