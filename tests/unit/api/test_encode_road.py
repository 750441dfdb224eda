"""``POST /v1/encode`` parses, plans and looks up a request once, wherever the answer comes from."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from api.encode import route
from api.encode.plan import Planner
from api.jobs.answers import job_answer
from api.services import Services
from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.identity import content_digest
from epd.store.cache.async_cache import AsyncCache
from epd.store.cache.embeddings import Embeddings
from epd.store.files.embedding_format import header_of
from epd.store.loop_connection import LoopConnection
from epd.store.values import Completed
from tests.unit.api.rest_kit import MakeRest, Rest

PNG = {"type": "image", "data": base64.b64encode(b"\x89PNG of a cat").decode()}
DOG = {"type": "image", "data": base64.b64encode(b"a dog").decode()}


@pytest.mark.parametrize("bound", ["SHORT_BODY", "FEW_ITEMS"])
def test_long_requests_are_planned_in_a_thread(
    make_rest: MakeRest, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"api.encode.route.{bound}", 0)
    rest = make_rest()
    first = rest.encode(PNG)
    called: list[str] = []
    call = Services.call

    async def noted(
        self: Services, function: Callable[..., object], *args: object, **named: object
    ) -> object:
        called.append(function.__name__)
        return await call(self, function, *args, **named)

    monkeypatch.setattr(Services, "call", noted)
    second = rest.encode(PNG)
    assert second["items"][0]["cached"] is True
    assert second["items"][0]["embedding"] == first["items"][0]["embedding"]
    assert called == (["parse_request", "plan"] if bound == "SHORT_BODY" else ["plan"])


def test_a_request_is_parsed_planned_and_looked_up_once(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when something is missing: the thread that starts the job takes over what the loop has done."""
    rest.encode(PNG)
    done: list[str] = []

    def noted(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: object, **named: object) -> object:
            done.append(name)
            return real(*args, **named)

        monkeypatch.setattr(owner, name, call)

    noted(route, "parse_request")
    noted(Planner, "plan")
    noted(AsyncCache, "lookup")
    noted(Embeddings, "lookup")
    rest.worker.go.clear()
    rest.encode(PNG, DOG, wait=0, status=202)
    assert done == ["parse_request", "plan", "lookup"]
    rest.worker.go.set()


def test_a_body_of_unknown_length_is_read_too(rest: Rest, forbid_threads: Callable[[], None]) -> None:
    rest.encode(PNG)
    forbid_threads()
    body = b'{"items":[{"type":"image","media_id":"%s"}]}' % content_digest(b"\x89PNG of a cat").encode()
    answer = rest.client.post("/v1/encode", content=iter([body[:20], body[20:]]))
    assert (answer.status_code, answer.json()["items"][0]["cached"]) == (200, True)


def test_a_server_behind_tls_is_asked_in_a_thread(
    make_rest: MakeRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopConnection, "supports", lambda _: False)
    rest = make_rest(url_ttl=60)
    first = rest.encode(PNG)
    second = rest.encode(PNG)
    assert [body["items"][0]["cached"] for body in (first, second)] == [False, True]
    view = rest.store.jobs.view(second["job_id"])
    assert view is not None
    assert second == job_answer(view).model_dump(mode="json")


def test_hits_are_counted_once_for_each_part(rest: Rest) -> None:
    rest.encode(PNG)

    def hits() -> int:
        return rest.store.embeddings.stats().totals.hits_l1

    before = hits()
    rest.encode(PNG, PNG)
    assert hits() == before + 2
    rest.worker.go.clear()
    rest.encode(PNG, DOG, wait=0, status=202)
    assert hits() == before + 3
    rest.worker.go.set()


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_file_is_a_miss_and_made_again(rest: Rest, damage: str) -> None:
    key = rest.encode(PNG)["items"][0]["embedding"]["key"]
    assert rest.encode(PNG)["items"][0]["cached"] is True
    path = rest.store.embeddings.path(key)
    if damage == "cut":
        os.truncate(path, path.stat().st_size - 1)
    else:
        path.unlink()
    body = rest.encode(PNG)
    assert (body["items"][0]["cached"], body["items"][0]["embedding"]["key"]) == (False, key)
    assert rest.encode(PNG)["items"][0]["cached"] is True


def fill(rest: Rest, number: int, nbytes: int) -> None:
    """Add an embedding of this size to the cache."""
    key, hidden = f"{number:064x}", nbytes // 4
    ref = EmbeddingRef(key=key, shape=(1, hidden), dtype="float32", nbytes=nbytes)
    metadata = Metadata(
        embedding_key=key, content_digest=key, modality=Modality.IMAGE, encoder="eye", dtype="float32",
        token_count=1, hidden=hidden,
    )  # fmt: skip
    rest.store.embeddings.publish_file(ref, memoryview(bytes(nbytes)), header_of(metadata))
    entry = Entry(ref=ref, metadata=metadata)
    rest.store.flights.complete([Completed(entry, "0" * 32, PartId(0, Modality.IMAGE), {})])


def test_what_lies_in_the_second_tier_alone_is_cached_and_brought_back(
    make_rest: MakeRest, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    rest = make_rest(l2_dir=second, l2_bytes=1 << 22, embedding_bytes=1 << 20)
    key = rest.encode(PNG)["items"][0]["embedding"]["key"]
    fill(rest, 1, 950_000)  # over the mover's target, and under the limit
    rest.store.embeddings.move(1)
    assert rest.store.embeddings.path(key).is_relative_to(second)
    before = rest.store.embeddings.stats().totals
    body = rest.encode(PNG)
    after = rest.store.embeddings.stats().totals
    assert (body["state"], body["items"][0]["cached"]) == ("done", True)
    assert body["items"][0]["embedding"]["key"] == key
    assert (after.hits_l1 - before.hits_l1, after.hits_l2 - before.hits_l2) == (0, 1)
    assert rest.store.embeddings.move(1).promoted == 1
