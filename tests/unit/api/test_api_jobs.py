"""Jobs: status, cancellation, expiry and events, and the flights that a cancelled job leaves."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time

import pytest

from api.jobs.completions import Completions
from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import JobRecord, JobView, PartId
from epd.contracts.media import Modality
from epd.contracts.responses import EventAnswer
from epd.identity import source_key
from epd.lookup import cards_of, needs_of
from epd.store.jobs import AsyncJobs
from epd.store.values import Claim, SourceMemo, Waiter
from tests.api_worker_double import beat
from tests.unit.api.rest_kit import MakeRest, Rest

CAT = {"type": "image", "url": "http://media.test/cat.png"}
FILM = {"type": "video", "url": "http://media.test/sound.mp4"}


def events_of(rest: Rest, job_id: str) -> list[EventAnswer]:
    answer = rest.client.get(f"/v1/jobs/{job_id}/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line.startswith("data:")]
    return [EventAnswer.model_validate(json.loads(line[5:])) for line in lines]


def test_cancel_is_final_and_idempotent(rest: Rest) -> None:
    rest.worker.go.clear()
    job_id = rest.encode(CAT, FILM, wait=0, status=202)["job_id"]
    for _ in range(2):
        answer = rest.client.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        assert {item["error"]["code"] for item in answer.json()["items"]} == {"cancelled"}
    rest.worker.go.set()
    rest.encode(CAT | {"id": "after"})
    assert rest.client.get(f"/v1/jobs/{job_id}").json()["state"] == "cancelled"


def test_cancelling_a_done_job_changes_nothing(rest: Rest) -> None:
    done = rest.encode(CAT)
    assert rest.client.delete(f"/v1/jobs/{done['job_id']}").json() == done


def test_cancel_ends_a_wait(rest: Rest) -> None:
    rest.worker.go.clear()
    job_id = rest.encode(CAT, wait=0, status=202)["job_id"]
    cancelling = threading.Timer(0.3, rest.client.delete, args=(f"/v1/jobs/{job_id}",))
    cancelling.start()
    began = time.monotonic()
    assert rest.client.get(f"/v1/jobs/{job_id}", params={"wait": 20}).json()["state"] == "cancelled"
    assert time.monotonic() - began < 2
    cancelling.join(5)  # its own answer may come later


def test_a_job_past_its_deadline_is_expired_when_seen(rest: Rest) -> None:
    rest.worker.go.clear()
    began = time.monotonic()
    body = rest.encode(CAT, deadline=0.3, wait=20)
    assert time.monotonic() - began < 3
    assert (body["state"], body["items"][0]["error"]["code"]) == ("expired", "deadline_exceeded")
    assert body["items"][0]["error"]["retryable"] is True


def test_events_of_a_final_job(rest: Rest) -> None:
    job = rest.encode(CAT, FILM)
    events = events_of(rest, job["job_id"])
    assert [(event.index, event.state, event.job_state) for event in events] == [
        (0, "done", "running"),
        (1, "done", "done"),
    ]


def test_events_begin_with_a_snapshot_and_end_with_the_job(rest: Rest) -> None:
    rest.worker.go.clear()
    job_id = rest.encode(CAT, FILM, CAT | {"url": "http://media.test/broken"}, wait=0, status=202)["job_id"]
    threading.Timer(0.3, rest.worker.go.set).start()
    events = events_of(rest, job_id)
    assert [(event.index, event.state) for event in events[:3]] == [
        (0, "queued"),
        (1, "queued"),
        (2, "queued"),
    ]
    by_item = {index: [event.state for event in events if event.index == index] for index in range(3)}
    for index, last in ((0, "done"), (1, "done"), (2, "failed")):
        states = by_item[index]
        assert states[-1] == last
        assert len(set(states)) == len(states), "one event a change"
        assert [state for state in ("queued", "running", last) if state in states] == states
    assert events[-1].job_state == "partial"
    assert all(event.job_state not in {"done", "partial"} for event in events[:-1])
    assert rest.services.completions.waiting == 0


def test_events_end_when_the_job_is_cancelled_or_expires(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.jobs.events.POLL_SECONDS", 0.1)
    rest.worker.go.clear()
    job_id = rest.encode(CAT, wait=0, status=202)["job_id"]
    threading.Timer(0.2, rest.client.delete, args=(f"/v1/jobs/{job_id}",)).start()
    assert events_of(rest, job_id)[-1].state == "cancelled"
    job_id = rest.encode(CAT, wait=0, deadline=0.2, status=202)["job_id"]
    assert events_of(rest, job_id)[-1].state == "expired"


def test_a_store_that_goes_away_is_503_and_comes_back(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store does not answer")

    job_id = rest.encode(CAT)["job_id"]
    with monkeypatch.context() as patch:
        patch.setattr(type(rest.store.async_jobs), "view", away)
        answer = rest.client.get(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert rest.client.get(f"/v1/jobs/{job_id}").status_code == 200


def test_a_wait_outlives_a_store_that_goes_away(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    view, calls = type(rest.store.async_jobs).view, iter(range(1000))

    async def sometimes(jobs: AsyncJobs, job_id: str, record: JobRecord | None = None) -> JobView | None:
        if next(calls) in (1, 2):
            raise StoreUnavailable("the store does not answer")
        return await view(jobs, job_id, record)

    rest.worker.go.clear()
    monkeypatch.setattr("api.jobs.actions.POLL_SECONDS", 0.1)
    monkeypatch.setattr(type(rest.store.async_jobs), "view", sometimes)
    threading.Timer(0.5, rest.worker.go.set).start()
    assert rest.encode(CAT)["state"] == "done"
    assert next(calls) > 3


def test_lost_notices_cost_time_only(make_rest: MakeRest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Completions, "_hear", _deaf)
    rest = make_rest()
    monkeypatch.setattr("api.jobs.actions.POLL_SECONDS", 0.1)
    rest.worker.go.clear()
    threading.Timer(0.2, rest.worker.go.set).start()
    began = time.monotonic()
    assert rest.encode(CAT)["state"] == "done"
    assert time.monotonic() - began < 5


def _deaf(*_: object) -> None:
    return


def test_health_and_readiness(rest: Rest) -> None:
    assert rest.client.get("/healthz").json() == {"status": "ok"}
    answer = rest.client.get("/readyz")
    assert answer.status_code == 503
    assert any("fetch" in reason for reason in answer.json()["reasons"])
    now = time.time()
    beat(rest.store, "fetch", now)
    beat(rest.store, "decode", now)
    beat(rest.store, "encode", now, ready=False, encoders=("eye", "ear"))
    assert rest.client.get("/readyz").status_code == 503
    beat(rest.store, "encode", now, encoders=("eye",))
    assert rest.client.get("/readyz").json()["reasons"] == ["encoder ear of model demo is not warm"]
    beat(rest.store, "encode", now, encoders=("eye", "ear"))
    assert rest.client.get("/readyz").json() == {"ready": True}
    models = rest.client.get("/v1/models").json()
    assert {e["name"]: e["ready"] for e in models["encoders"]} == {"eye": True, "ear": True, "cold": False}
    assert [m["name"] for m in models["models"] if m["default"]] == ["demo"]
    assert {e["name"]: e["card"] is None for e in models["encoders"]}["cold"] is True


def test_metrics_and_request_ids(rest: Rest) -> None:
    rest.encode(CAT)
    answer = rest.client.get("/metrics", headers={"X-Request-Id": "abc-1"})
    assert answer.headers["X-Request-Id"] == "abc-1"
    assert 'epd_http_requests_total{method="POST",route="/v1/encode",status="200"} 1.0' in answer.text
    assert 'epd_items_total{result="done",type="image"} 1.0' in answer.text
    assert "epd_store_up 1.0" in answer.text
    strange = rest.client.get("/healthz", headers={"X-Request-Id": "a b\t<x>"})
    assert len(strange.headers["X-Request-Id"]) == 32


URL = "http://media.test/cat.png"
DATA = b"an image"
INLINE = {"type": "image", "data": base64.b64encode(DATA).decode()}
LINKED = {"type": "image", "url": URL}


@pytest.fixture
def shared(rest: Rest) -> Rest:
    """No worker acts, and the URL's digest is known from before."""
    rest.worker.go.clear()
    memo = SourceMemo(digest=hashlib.sha256(DATA).hexdigest(), fetched_at=time.time() - 1e6, nbytes=9)
    rest.store.sources.put(source_key(URL), memo)
    return rest


def claim(rest: Rest, number: int) -> tuple[str, Claim]:
    """What a fetch worker does with the message of a job; the embedding key and the answer."""
    message = rest.worker.published[number]
    (item,) = message.items
    _, model = rest.worker.config.model(message.model)
    digest = hashlib.sha256(DATA).hexdigest()
    key = needs_of(item, digest, model=model, cards=cards_of(model, rest.store.cards)).main.key
    waiter = Waiter(message.job_id, PartId(0, Modality.IMAGE), message.to_json())
    return key, rest.store.flights.claim(key, waiter)


@pytest.mark.parametrize("item", [INLINE, LINKED], ids=["upload", "url"])
def test_the_flight_of_a_cancelled_job_is_passed_on_at_once(shared: Rest, item: dict[str, object]) -> None:
    jobs = [shared.encode(item, wait=0, status=202)["job_id"] for _ in range(2)]
    assert [claim(shared, number)[1] for number in (0, 1)] == [Claim.OWNED, Claim.WAITING]
    assert shared.client.delete(f"/v1/jobs/{jobs[0]}").json()["state"] == "cancelled"
    assert [message.job_id for message in shared.worker.published] == [*jobs, jobs[1]]
    assert claim(shared, 2)[1] is Claim.OWNED


def test_a_cancelled_waiter_leaves_the_flight_to_its_owner(shared: Rest) -> None:
    jobs = [shared.encode(INLINE, wait=0, status=202)["job_id"] for _ in range(2)]
    assert [claim(shared, number)[1] for number in (0, 1)] == [Claim.OWNED, Claim.WAITING]
    shared.client.delete(f"/v1/jobs/{jobs[1]}")
    assert len(shared.worker.published) == 2
    assert claim(shared, 0)[1] is Claim.OWNED


def test_an_expired_job_passes_its_flight_on_too(shared: Rest) -> None:
    late = shared.encode(INLINE, wait=0, deadline=0.2, status=202)["job_id"]
    other = shared.encode(INLINE, wait=0, status=202)["job_id"]
    assert [claim(shared, number)[1] for number in (0, 1)] == [Claim.OWNED, Claim.WAITING]
    answer = shared.client.get(f"/v1/jobs/{late}", params={"wait": 5}).json()
    assert answer["state"] == "expired"
    assert shared.worker.published[-1].job_id == other


def test_a_broker_that_is_down_does_not_keep_a_job_from_being_cancelled(shared: Rest) -> None:
    jobs = [shared.encode(INLINE, wait=0, status=202)["job_id"] for _ in range(2)]
    key, _ = claim(shared, 0)
    claim(shared, 1)
    shared.worker.failing = StoreUnavailable("no broker")
    assert shared.client.delete(f"/v1/jobs/{jobs[0]}").json()["state"] == "cancelled"
    shared.worker.failing = None
    waiter = Waiter(jobs[1], PartId(0, Modality.IMAGE), shared.worker.published[1].to_json())
    assert shared.store.flights.claim(key, waiter) is Claim.OWNED, "free for the next claim"
