"""Requests whose items are all cached: the same answers as a job's, without a thread."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

import pytest

from api.jobs.answers import job_answer
from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.identity import content_digest, source_key
from epd.lookup import cards_of
from epd.store.values import Completed, SourceMemo
from tests.api_worker_double import announce
from tests.unit.api.rest_kit import MakeRest, Rest

PNG = {"type": "image", "data": base64.b64encode(b"\x89PNG of a cat").decode()}
ODD = {"id": 'a "quoted" \\ ünïcode \u2028 id'}


def media(rest: Rest, content: bytes, kind: str) -> dict[str, object]:
    media_id = rest.client.post("/v1/media", content=content).json()["media_id"]
    return {"type": kind, "media_id": media_id}


def test_a_cached_answer_equals_that_of_its_job(rest: Rest, forbid_threads: Callable[[], None]) -> None:
    items = [PNG | ODD, media(rest, b"a film", "video"), media(rest, b"a song", "audio") | {"id": ""}]
    made = rest.encode(*items)
    forbid_threads()
    answer = rest.client.post("/v1/encode", json={"items": items})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    body = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{body['job_id']}"
    assert "x-request-id" in answer.headers
    view = rest.store.jobs.view(body["job_id"])
    assert view is not None
    assert body == job_answer(view).model_dump(mode="json")
    assert [item["embedding"] for item in body["items"]] == [item["embedding"] for item in made["items"]]
    assert body["usage"] == made["usage"]
    assert [item["id"] for item in body["items"]] == [ODD["id"], None, ""]
    assert all(item["cached"] for item in body["items"])


def test_a_video_with_audio_has_its_track(rest: Rest, forbid_threads: Callable[[], None]) -> None:
    url = "http://media.test/sound.mp4"
    film = {"type": "video", "media_id": content_digest(url.encode())}
    rest.encode({"type": "video", "url": url})
    forbid_threads()
    body = rest.encode(film)
    assert [track["type"] for track in body["items"][0]["tracks"]] == ["audio"]
    assert body["usage"] == {"image_tokens": 0, "video_tokens": 12, "audio_tokens": 7, "total_tokens": 19}
    view = rest.store.jobs.view(body["job_id"])
    assert view is not None
    assert body == job_answer(view).model_dump(mode="json")


def test_cached_answers_are_counted_as_others(rest: Rest) -> None:
    rest.encode(PNG)

    def value(line: str) -> float:
        found = [text for text in rest.client.get("/metrics").text.splitlines() if text.startswith(line)]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    lines = (
        'epd_items_total{result="cached",type="image"}',
        'epd_jobs_total{state="done"}',
        'epd_http_requests_total{method="POST",route="/v1/encode",status="200"}',
    )
    before = [value(line) for line in lines]
    rest.encode(PNG, PNG)
    assert [value(line) - was for line, was in zip(lines, before, strict=True)] == [2, 1, 1]


def test_bytes_that_were_not_downloaded_are_counted(make_rest: MakeRest) -> None:
    rest = make_rest(url_ttl=60)
    cat = {"type": "image", "url": "http://media.test/cat.png"}
    key = rest.encode(cat)["items"][0]["embedding"]["key"]
    (entry,) = rest.store.embeddings.lookup([key])
    assert entry is not None
    sized = entry.metadata.model_copy(update={"source_bytes": 500})
    again = Completed(entry.model_copy(update={"metadata": sized}), "0" * 32, PartId(0, Modality.IMAGE), {})
    rest.store.flights.complete([again])
    digest = content_digest(cat["url"].encode())
    rest.store.sources.put(
        source_key(cat["url"]), SourceMemo(digest=digest, fetched_at=time.time(), nbytes=1)
    )
    rest.encode(cat, {"type": "image", "media_id": digest}, cat)
    assert "epd_saved_bytes_total 1000.0" in rest.client.get("/metrics").text


def test_one_missing_item_makes_a_job_of_all(rest: Rest) -> None:
    rest.encode(PNG)
    jobs = rest.store.jobs
    body = rest.encode(PNG, {"type": "image", "data": base64.b64encode(b"a dog").decode()})
    assert [item["cached"] for item in body["items"]] == [True, False]
    view = jobs.view(body["job_id"])
    assert view is not None
    assert [len(message.items) for message in rest.worker.published] == [1, 1]


@pytest.mark.parametrize(("age", "cached"), [(10, True), (70, False)])
def test_a_url_is_known_inside_its_window(make_rest: MakeRest, age: float, cached: bool) -> None:
    rest = make_rest(url_ttl=60)
    cat = {"type": "image", "url": "http://media.test/cat.png"}
    rest.encode(cat)
    memo = SourceMemo(digest=content_digest(cat["url"].encode()), fetched_at=time.time() - age, nbytes=1)
    rest.store.sources.put(source_key(cat["url"]), memo)
    before = len(rest.worker.published)
    assert rest.encode(cat)["items"][0]["cached"] is True  # the worker finds it too
    assert (len(rest.worker.published) == before) is cached


def test_other_cards_make_other_keys(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epd.store.cache.async_cache.CARD_SECONDS", 0)
    first = rest.encode(PNG)["items"][0]["embedding"]["key"]
    _, model = rest.services.config.model(None)
    card = cards_of(model, rest.store.cards)[Modality.IMAGE]
    rest.store.cards.announce(card.model_copy(update={"weights_digest": "9" * 64}))
    second = rest.encode(PNG)["items"][0]
    assert second["cached"] is False
    assert second["embedding"]["key"] != first
    announce(rest.store)
    assert rest.encode(PNG)["items"][0]["embedding"]["key"] == first


def test_a_changed_url_and_a_removed_embedding_are_seen_at_once(make_rest: MakeRest) -> None:
    """A URL's content and its embedding are those of now, however often they were answered before."""
    rest = make_rest(url_ttl=60)
    cat = {"type": "image", "url": "http://media.test/cat.png"}
    digest = content_digest(cat["url"].encode())

    def say(digest: str) -> None:
        memo = SourceMemo(digest=digest, fetched_at=time.time(), nbytes=1)
        rest.store.sources.put(source_key(cat["url"]), memo)

    key = rest.encode(cat)["items"][0]["embedding"]["key"]
    say(digest)
    for _ in range(3):
        assert rest.encode(cat)["items"][0]["embedding"]["key"] == key
    assert len(rest.worker.published) == 1
    say(content_digest(b"another cat"))
    rest.encode(cat)
    assert len(rest.worker.published) == 2
    say(digest)
    rest.store.embeddings.remove([key])
    assert rest.encode(cat)["items"][0]["cached"] is False
    assert len(rest.worker.published) == 3


def test_a_silent_video_whose_audio_is_required_fails_at_once(rest: Rest) -> None:
    url = "http://media.test/mute.mp4"
    film = {"type": "video", "media_id": content_digest(url.encode())}
    rest.encode({"type": "video", "url": url})
    body = rest.encode(film | {"options": {"audio_track": "require"}})
    assert body["state"] == "failed"
    assert body["items"][0]["error"]["code"] == "no_audio_track"
    assert rest.encode(film)["items"][0]["cached"] is True


def test_a_store_in_trouble_is_503(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.encode(PNG)

    async def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("down")

    monkeypatch.setattr(rest.store.async_cache, "create", refuse)
    answer = rest.client.post("/v1/encode", json={"items": [PNG]})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert answer.headers["Retry-After"] == "1"


def test_an_invalid_url_is_refused(make_rest: MakeRest) -> None:
    rest = make_rest(url_ttl=60)
    for url, code in (("http://a:b:c/", "invalid_request"), ("file:///etc/passwd", "source_refused")):
        answer = rest.client.post("/v1/encode", json={"items": [{"type": "image", "url": url}]})
        assert answer.json()["code"] == code, answer.text


def test_an_option_set_to_its_default_is_refused_where_it_does_not_apply(rest: Rest) -> None:
    rest.encode(PNG)
    assert rest.client.post("/v1/encode", json={"items": [PNG]}).json()["items"][0]["cached"]
    answer = rest.client.post("/v1/encode", json={"items": [PNG | {"options": {"audio_track": "auto"}}]})
    assert answer.status_code == 400
    assert "audio_track" in answer.text


def test_items_may_repeat_and_change_places(rest: Rest) -> None:
    song = media(rest, b"a song", "audio")
    rest.encode(PNG, song)
    for items in ([PNG, song], [song, PNG], [PNG, PNG, song]):
        answer = rest.client.post("/v1/encode", json={"items": items}).json()
        assert [item["index"] for item in answer["items"]] == list(range(len(items)))
        assert [item["type"] for item in answer["items"]] == [
            "image" if item is PNG else "audio" for item in items
        ]
        view = rest.store.jobs.view(answer["job_id"])
        assert view is not None
        assert answer == job_answer(view).model_dump(mode="json")
