"""``/v1/handoff/{request_id}``: put, get, wait, delete."""

from __future__ import annotations

import json
import threading
import time

import pytest

from api.errors import seconds_text
from api.services import Services
from epd.contracts.errors import StoreUnavailable
from epd.contracts.handoff import Handoff, HandoffRequest
from epd.store.loop_connection import LoopConnection
from tests.api_worker_double import HIDDEN
from tests.unit.api.rest_kit import (
    AUDIO,
    HANDOFF_URL,
    IMAGE,
    MakeRest,
    Rest,
    cache_image_and_audio,
    handoff_body,
)

GONE = "f6" * 32


@pytest.fixture
def kept(rest: Rest) -> Rest:
    return cache_image_and_audio(rest)


PROMPT = handoff_body(
    (IMAGE, 4, 5), (AUDIO, 11, 7), mrope_position_delta=-3, prompt_tokens=20, extra={"seed": 7}
)


def test_prefill_puts_and_decode_gets(kept: Rest) -> None:
    put = kept.client.put(HANDOFF_URL, json=PROMPT)
    assert put.status_code == 201, put.text
    got = kept.client.get(HANDOFF_URL)
    assert (got.status_code, got.headers["Content-Type"]) == (200, "application/json")
    assert put.json() == {"request_id": "chatcmpl-9f:1", "nbytes": len(got.content), "ttl": 600.0}
    found = Handoff.from_json(got.content)
    assert [(item.key, item.offset, item.length) for item in found.items] == [(IMAGE, 4, 5), (AUDIO, 11, 7)]
    assert [item.metadata.hidden for item in found.items] == [HIDDEN, HIDDEN]
    metadata = [kept.client.get(f"/v1/metadata/{key}").json() for key in (IMAGE, AUDIO)]
    assert [item["metadata"] for item in got.json()["items"]] == [
        {name: value for name, value in one.items() if value is not None} for one in metadata
    ]
    assert (found.mrope_position_delta, found.prompt_tokens, found.extra) == (-3, 20, {"seed": 7})


def test_extra_comes_back_as_it_was(quiet: Rest) -> None:
    text = (
        '{"deep": ' + "[" * 100 + "]" * 100 + ', "big": 18446744073709551615, "half": 0.1, "odd": "\\u0000é"}'
    )
    put = quiet.client.put(HANDOFF_URL + "x", content='{"items": [], "extra": ' + text + "}")
    assert put.status_code == 201
    assert quiet.client.get(HANDOFF_URL + "x").json()["extra"] == json.loads(text)


def test_an_equal_put_is_200_and_a_different_one_409(kept: Rest) -> None:
    assert [kept.client.put(HANDOFF_URL, json=PROMPT).status_code for _ in range(3)] == [201, 200, 200]
    other = kept.client.put(HANDOFF_URL, json=PROMPT | {"mrope_position_delta": -4})
    assert (other.status_code, other.json()["code"], other.json()["retryable"]) == (
        409,
        "handoff_conflict",
        False,
    )
    assert kept.client.get(HANDOFF_URL).json()["mrope_position_delta"] == -3


def test_a_key_that_is_not_there_is_named(kept: Rest) -> None:
    answer = kept.client.put(HANDOFF_URL, json=handoff_body((IMAGE, 0, 5), (GONE, 5, 5)))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert GONE in answer.json()["detail"]
    assert IMAGE not in answer.json()["detail"]
    assert kept.client.get(HANDOFF_URL).status_code == 404


def test_a_put_may_carry_the_metadata_of_an_encode_answer(kept: Rest) -> None:
    metadata = kept.client.get(f"/v1/metadata/{IMAGE}").json()
    kept.store.embeddings.remove([IMAGE])
    item = {"key": IMAGE, "offset": 0, "length": 5}
    assert kept.client.put(HANDOFF_URL, json={"items": [item]}).status_code == 404
    assert kept.client.put(HANDOFF_URL, json={"items": [item | {"metadata": metadata}]}).status_code == 201
    assert kept.client.get(HANDOFF_URL).json()["items"][0]["metadata"]["embedding_key"] == IMAGE


def test_one_second_is_written_in_the_singular(quiet: Rest) -> None:
    assert seconds_text(1) == "1 second"
    answer = quiet.client.get(HANDOFF_URL, params={"wait": 1})
    assert answer.json()["detail"] == "no handoff of that request id came within 1 second"


def test_waits_are_bounded(quiet: Rest) -> None:
    assert quiet.client.get(HANDOFF_URL, params={"wait": 301}).status_code == 400
    assert quiet.client.get(HANDOFF_URL, params={"wait": -1}).status_code == 400
    assert quiet.client.get(HANDOFF_URL, params={"wait": "nan"}).status_code == 400
    began = time.monotonic()
    answer = quiet.client.get(HANDOFF_URL, params={"wait": 0.3})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["detail"].endswith("within 0.3 seconds")
    assert 0.29 < time.monotonic() - began < 3
    assert quiet.services.completions.waiting == 0


def test_decode_may_come_first(kept: Rest) -> None:
    request = HandoffRequest.model_validate(PROMPT)

    def put_later() -> None:
        end = time.monotonic() + 10
        while kept.services.completions.waiting == 0 and time.monotonic() < end:
            time.sleep(0.01)
        kept.store.handoffs.put("chatcmpl-9f:1", request)

    putting = threading.Thread(target=put_later)
    putting.start()
    began = time.monotonic()
    answer = kept.client.get(HANDOFF_URL, params={"wait": 30})
    putting.join(10)
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - began < 4, "a notice woke it, not the look"
    assert kept.services.completions.waiting == 0


def test_a_missed_notice_costs_time_and_no_answer(kept: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.handoff.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("api.handoff.handoff_topic", lambda _: "nobody announces this")
    timer = threading.Timer(
        0.3, kept.store.handoffs.put, ("chatcmpl-9f:1", HandoffRequest.model_validate(PROMPT))
    )
    timer.start()
    assert kept.client.get(HANDOFF_URL, params={"wait": 20}).status_code == 200


def test_too_many_waits_are_refused(kept: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.services.completions, "_limit", 0)
    answer = kept.client.get(HANDOFF_URL, params={"wait": 1})
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
    assert kept.client.put(HANDOFF_URL, json=PROMPT).status_code == 201
    assert kept.client.get(HANDOFF_URL).status_code == 200, "who does not wait is not refused"


def test_deleting_is_idempotent_and_frees_the_id(kept: Rest) -> None:
    kept.client.put(HANDOFF_URL, json=PROMPT)
    assert [kept.client.delete(HANDOFF_URL).status_code for _ in range(2)] == [204, 204]
    assert kept.client.get(HANDOFF_URL).status_code == 404
    assert kept.client.put(HANDOFF_URL, json=PROMPT | {"mrope_position_delta": 1}).status_code == 201


def test_a_handoff_expires(make_rest: MakeRest) -> None:
    rest = cache_image_and_audio(make_rest(handoff_ttl=0.2))
    assert rest.client.put(HANDOFF_URL, json=PROMPT).json()["ttl"] == 0.2
    end = time.monotonic() + 5
    while rest.client.get(HANDOFF_URL).status_code == 200:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert rest.client.get(HANDOFF_URL).status_code == 404


def test_the_routes_are_documented(quiet: Rest) -> None:
    document = quiet.client.get("/openapi.json").json()
    assert set(document["paths"]["/v1/handoff/{request_id}"]) == {"put", "get", "delete"}
    assert {"HandoffRequest", "Handoff", "HandoffReceipt", "SlicesRequest"} <= set(
        document["components"]["schemas"]
    )


def test_a_handoff_that_is_there_takes_neither_a_thread_nor_a_subscription(
    kept: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.client.put(HANDOFF_URL, json=PROMPT)
    plain = kept.client.get(HANDOFF_URL).content
    monkeypatch.setattr(Services, "call", None)
    monkeypatch.setattr(kept.services.completions, "_limit", 0)
    for query in ("", "?wait=30", "?wait=0"):
        answer = kept.client.get(HANDOFF_URL + query)
        assert (answer.status_code, answer.content) == (200, plain)
        assert answer.headers["X-Request-Id"]
    monkeypatch.undo()
    counted = 'epd_http_requests_total{method="GET",route="/v1/handoff/{request_id}",status="200"} 4.0'
    assert counted in kept.client.get("/metrics").text


@pytest.mark.parametrize("query", ["?wait=1.5", "?wait=1&x=2", "?wait=%31", "?wait=+1", "?wait=x&wait=1"])
def test_a_wait_may_be_written_in_other_ways(kept: Rest, query: str) -> None:
    kept.client.put(HANDOFF_URL, json=PROMPT)
    assert kept.client.get(HANDOFF_URL + query).status_code == 200


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("r1?wait=soon", "wait: input should be a valid number, unable to parse string as a number"),
        ("r1?wait=", "wait: input should be a valid number, unable to parse string as a number"),
        ("r1?wait=-1", "wait: input should be greater than or equal to 0"),
        ("r1?wait=inf", "wait: input should be a finite number"),
        ("a%20b?wait=-1", "request_id: string should match pattern"),
    ],
)
def test_parameters_are_checked_and_named(quiet: Rest, path: str, detail: str) -> None:
    answer = quiet.client.get(f"/v1/handoff/{path}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json()["detail"].startswith(detail)


def test_a_store_that_does_not_answer_is_503(kept: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    async def down(*_: object) -> None:
        raise StoreUnavailable("the store does not answer")

    monkeypatch.setattr(type(kept.store.async_handoffs), "get", down)
    answer = kept.client.get(HANDOFF_URL)
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert answer.headers["Retry-After"]


def test_a_server_behind_tls_is_asked_in_a_thread(
    make_rest: MakeRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopConnection, "supports", lambda _: False)
    kept = cache_image_and_audio(make_rest())
    kept.client.put(HANDOFF_URL, json=PROMPT)
    assert kept.client.get(HANDOFF_URL).status_code == 200
    assert kept.client.get(f"{HANDOFF_URL}x?wait=0.1").status_code == 404
