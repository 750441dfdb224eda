"""POST /v1/encode: answers, order, waiting, the cache, and failures of items."""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import Any

import pytest

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import JobRecord
from epd.identity import content_digest
from epd.store.admissions import Load
from tests.unit.api.rest_kit import MakeRest, Rest

CAT = {"type": "image", "url": "http://media.test/cat.png", "id": "cat"}
PNG = b"\x89PNG not really an image"


def test_a_whole_answer(rest: Rest) -> None:
    audio = {"type": "audio", "url": "http://media.test/a.wav"}
    film = {"type": "video", "url": "http://media.test/sound.mp4", "id": "film"}
    body = rest.encode(CAT, audio, film)
    assert body["state"] == "done"
    assert [item["type"] for item in body["items"]] == ["image", "audio", "video"]
    assert [item["id"] for item in body["items"]] == ["cat", None, "film"]
    assert [item["index"] for item in body["items"]] == [0, 1, 2]
    image = body["items"][0]
    assert image["embedding"]["shape"] == [5, 8]
    assert image["embedding"]["url"] == f"/v1/embeddings/{image['embedding']['key']}"
    assert image["metadata"]["token_count"] == 5
    assert image["timings"] == {"fetch": 0.01, "decode": 0.02, "forward": 0.03}
    assert image["error"] is None
    assert image["cached"] is False
    (track,) = body["items"][2]["tracks"]
    assert (track["type"], track["state"], track["embedding"]["shape"]) == ("audio", "done", [7, 8])
    assert body["usage"] == {
        "image_tokens": 5,
        "video_tokens": 12,
        "audio_tokens": 14,
        "total_tokens": 31,
    }


def test_the_second_time_is_cached_for_known_digests(rest: Rest) -> None:
    item = {"type": "image", "data": base64.b64encode(PNG).decode()}
    first = rest.encode(item)
    published = len(rest.worker.published)
    second = rest.encode(item, {"type": "image", "media_id": content_digest(PNG)})
    assert len(rest.worker.published) == published
    assert [i["cached"] for i in second["items"]] == [True, True]
    assert {i["embedding"]["key"] for i in second["items"]} == {first["items"][0]["embedding"]["key"]}
    assert rest.client.get(f"/v1/jobs/{second['job_id']}").json() == second


def test_hits_and_misses_keep_their_order(rest: Rest) -> None:
    data = [base64.b64encode(b"item %d" % n).decode() for n in range(4)]
    items = [{"type": "image", "data": text, "id": str(n)} for n, text in enumerate(data)]
    singles = [rest.encode(item)["items"][0]["embedding"]["key"] for item in (items[0], items[2])]
    body = rest.encode(*items)
    assert [item["cached"] for item in body["items"]] == [True, False, True, False]
    assert [item["id"] for item in body["items"]] == ["0", "1", "2", "3"]
    assert [body["items"][n]["embedding"]["key"] for n in (0, 2)] == singles
    assert [len(message.items) for message in rest.worker.published[-1:]] == [2]


def test_options_make_other_keys(rest: Rest) -> None:
    plain = {"type": "image", "data": base64.b64encode(PNG).decode()}
    small = plain | {"options": {"max_pixels": 64}}
    keys = [rest.encode(item)["items"][0]["embedding"]["key"] for item in (plain, small, plain)]
    assert keys[0] == keys[2] != keys[1]


def test_a_silent_video_is_cached_without_a_track(rest: Rest) -> None:
    film = {"type": "video", "media_id": rest.client.post("/v1/media", content=b"film").json()["media_id"]}
    assert rest.encode(film)["items"][0]["metadata"]["audio"] == {"present": False, "seconds": None}
    again = rest.encode(film)["items"][0]
    assert (again["state"], again["cached"], again["tracks"]) == ("done", True, [])
    required = rest.encode(film | {"options": {"audio_track": "require"}})
    assert required["state"] == "failed"
    assert required["items"][0]["error"]["code"] == "no_audio_track"


def test_failures_stay_with_their_items(rest: Rest) -> None:
    bad = {"type": "image", "url": "http://media.test/broken.png"}
    mute = {"type": "video", "url": "http://media.test/sound-mute-broken.mp4"}
    body = rest.encode(CAT, bad, mute)
    assert [item["state"] for item in body["items"]] == ["done", "failed", "partial"]
    assert body["state"] == "partial"
    error = body["items"][1]["error"]
    assert (error["code"], error["retryable"]) == ("corrupt_media", False)
    assert body["items"][2]["tracks"][0]["error"]["code"] == "corrupt_media"
    assert rest.encode(bad)["state"] == "failed"


def test_202_and_then_the_job(rest: Rest) -> None:
    rest.worker.go.clear()
    answer = rest.client.post("/v1/encode", json={"items": [CAT], "wait": 0})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["Location"] == f"/v1/jobs/{job['job_id']}"
    assert (job["state"], job["items"][0]["state"]) == ("queued", "queued")
    began = time.monotonic()
    assert rest.encode(CAT | {"id": "2"}, wait=0.2, status=202)["state"] == "queued"
    assert time.monotonic() - began < 2
    rest.worker.go.set()
    final = rest.client.get(answer.headers["Location"], params={"wait": 10}).json()
    assert (final["job_id"], final["state"]) == (job["job_id"], "done")


def test_a_waiting_request_wakes_at_once(rest: Rest) -> None:
    rest.worker.go.clear()
    threading.Timer(0.2, rest.worker.go.set).start()
    began = time.monotonic()
    assert rest.encode(CAT, wait=30)["state"] == "done"
    assert time.monotonic() - began < 1.5
    assert rest.services.completions.waiting == 0


def test_priority_deadline_and_trace_travel(rest: Rest) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"items": [CAT], "priority": "bulk", "deadline": 50}
    answer = rest.client.post("/v1/encode", json=body, headers={"traceparent": parent})
    assert answer.status_code == 200
    (message,) = rest.worker.published
    assert message.priority == "bulk"
    assert message.deadline == pytest.approx(time.time() + 50, abs=5)
    assert message.trace["traceparent"].split("-")[1] == parent.split("-")[1]


def test_messages_are_chunks_of_small_references(rest: Rest) -> None:
    data = base64.b64encode(b"x" * 200_000).decode()
    items = [{"type": "image", "data": data}] * 2 + [CAT] * 8
    rest.encode(*items)
    assert [len(message.items) for message in rest.worker.published] == [4, 4, 2]
    assert max(len(message.to_json()) for message in rest.worker.published) < 16_000


@pytest.mark.parametrize("owned", [False, True], ids=["a download", "with bytes of its own"])
def test_a_failed_publish_leaves_no_queued_job(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    item = {"type": "image", "data": base64.b64encode(PNG).decode()} if owned else CAT
    rest.worker.failing = StoreUnavailable("the broker does not answer")
    created: list[str] = []
    owner, name = (rest.store.jobs, "create") if owned else (rest.store.async_jobs, "start")
    write = getattr(owner, name)

    def noted(record: JobRecord, *args: object, **named: object) -> object:
        created.append(record.job_id)
        return write(record, *args, **named)

    monkeypatch.setattr(owner, name, noted)
    answer = rest.client.post("/v1/encode", json={"items": [item]})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert answer.headers["Retry-After"] == "1"
    job = rest.client.get(f"/v1/jobs/{created[0]}").json()
    assert (job["state"], job["items"][0]["error"]["code"]) == ("failed", "store_unavailable")
    rest.worker.failing = RuntimeError("secret detail")
    answer = rest.client.post("/v1/encode", json={"items": [item]})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert rest.client.get(f"/v1/jobs/{created[1]}").json()["state"] == "failed"
    assert rest.store.admissions.held() == Load(0, 0)
    assert rest.services.completions.waiting == 0


def test_a_store_that_answers_too_late_leaves_no_job_and_no_load(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was written and admitted, and only the answer was lost."""
    created: list[str] = []
    write = rest.store.async_jobs.start

    async def lost(record: JobRecord, *args: Any, **named: Any) -> bool:
        created.append(record.job_id)
        await write(record, *args, **named)
        raise StoreUnavailable("the store does not answer")

    monkeypatch.setattr(rest.store.async_jobs, "start", lost)
    answer = rest.client.post("/v1/encode", json={"items": [CAT]})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert rest.worker.published == []
    assert rest.client.get(f"/v1/jobs/{created[0]}").json()["state"] == "failed"
    assert rest.store.admissions.held() == Load(0, 0)


def test_full_queues_refuse_new_work_but_not_cached_answers(make_rest: MakeRest) -> None:
    rest = make_rest(max_queue_items=10)
    item = {"type": "image", "data": base64.b64encode(PNG).decode()}
    rest.encode(item)
    rest.queues |= {"fetch": 9, "decode": 11, "encode": 1}
    deadline = time.monotonic() + 5
    while (answer := rest.client.post("/v1/encode", json={"items": [CAT]})).status_code != 429:
        assert time.monotonic() < deadline
    assert answer.json()["code"] == "overloaded"
    assert int(answer.headers["Retry-After"]) >= 1
    assert rest.encode(item)["items"][0]["cached"] is True


def test_200_at_once(rest: Rest) -> None:
    answers: list[dict] = [{}] * 200

    def post(n: int) -> None:
        answers[n] = rest.encode(
            {"type": "image", "url": f"http://media.test/{n}.png", "id": str(n)}, wait=60
        )

    threads = [threading.Thread(target=post, args=(n,)) for n in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answer["items"][0]["id"] for answer in answers] == [str(n) for n in range(200)]
    assert {answer["state"] for answer in answers} == {"done"}
    assert len({answer["items"][0]["embedding"]["key"] for answer in answers}) == 200


def test_json_is_what_openapi_says(rest: Rest) -> None:
    document = rest.client.get("/openapi.json").json()
    assert "EncodeRequest" in document["components"]["schemas"]
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert name in document["components"]["schemas"], name
    post = document["paths"]["/v1/encode"]["post"]
    assert {"200", "202", "400", "429", "503"} <= set(post["responses"])
    page = rest.client.get("/docs").text
    assert "cdn" not in page
    assert "https://" not in page.replace("https://fastapi.tiangolo.com/img/favicon.png", "https://")


def test_the_bare_address_leads_to_the_documentation(rest: Rest) -> None:
    answer = rest.client.get("/")
    assert (answer.status_code, answer.url.path) == (200, "/docs")
