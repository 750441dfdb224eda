"""The parts of bench.ttft: its loads, its requests and its photos."""

from __future__ import annotations

import io
import threading
import time
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from PIL import Image

from bench.images import PHOTO_SIZE, photos, renamed
from bench.ttft.load import MOST_IMAGES, PHOTOS, Mix, Request, Requests, first_tokens, one_by_one, saturate
from bench.ttft.measurement import DELAY, photo_site
from bench.ttft.sizes import REAL, SMALL

SITE = "http://127.0.0.1:1"


class OneAtATime:
    """A server that answers a request in so many seconds, in order."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._open = 0
        self.most_open = 0

    def ask(self, request: Request) -> Future[Any]:
        answer: Future[Any] = Future()
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        threading.Thread(target=self._work, args=(answer,), daemon=True).start()
        return answer

    def _work(self, answer: Future[Any]) -> None:
        with self._turn:
            time.sleep(self._seconds)
            self._open -= 1
        answer.set_result({"tokens": [1]})


def test_a_saturated_server_keeps_its_rate_and_its_limit_of_open_requests() -> None:
    server = OneAtATime(0.01)
    rate = saturate(server.ask, [{}] * 20, at_once=3)
    assert 0 < rate <= 125  # 100, but for when an end is noted
    assert server.most_open <= 3


def test_a_request_alone_waits_for_nobody() -> None:
    server = OneAtATime(0.01)
    assert one_by_one(server.ask, [{}] * 5) >= 0.01
    assert server.most_open == 1


def test_waiting_counts_from_the_planned_time() -> None:
    """All come nearly at once, so the n-th waits for the n - 1 before it."""
    seconds = sorted(first_tokens(OneAtATime(0.02).ask, [{}] * 5, rate=10_000.0, seed=1))
    assert len(seconds) == 5
    assert seconds[-1] >= 5 * 0.02 - 0.005


def test_a_request_that_fails_fails_the_measurement() -> None:
    def ask(request: Request) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_exception(RuntimeError("no"))
        return answer

    with pytest.raises(RuntimeError, match="no"):
        saturate(ask, [{}], at_once=1)


def test_both_sides_get_the_same_requests() -> None:
    def urls(mix: Mix) -> list[list[str]]:
        return [_urls(request) for request in Requests(SITE).of(mix, 50, seed=3)]

    for mix in Mix:
        assert urls(mix) == urls(mix)


def test_all_loads_weigh_the_same() -> None:
    for mix in Mix:
        sizes = [len(_urls(request)) for request in Requests(SITE).of(mix, 3 * MOST_IMAGES, seed=3)]
        assert sorted(sizes) == sorted(3 * [*range(1, MOST_IMAGES + 1)])
        assert sorted(sizes[:MOST_IMAGES]) == [*range(1, MOST_IMAGES + 1)]


def test_requests_come_at_the_given_rate() -> None:
    seconds = first_tokens(OneAtATime(0.0).ask, [{}] * 40, rate=400.0, seed=1)
    assert len(seconds) == 40
    assert min(seconds) >= 0


def test_the_distinct_mix_has_no_file_twice_and_the_repeated_one_none_that_is_not_warm() -> None:
    requests = Requests(SITE)
    warm = {url for request in requests.warm_up() for url in _urls(request)}
    assert len(warm) == PHOTOS
    assert {url for request in requests.of(Mix.REPEATED, 30, 1) for url in _urls(request)} <= warm
    every = [
        url for seed in (1, 2) for request in requests.of(Mix.DISTINCT, 30, seed) for url in _urls(request)
    ]
    assert len(set(every)) == len(every)


def _urls(request: Request) -> list[str]:
    return [part["url"] for part in request["parts"] if not isinstance(part, str)]


@pytest.fixture(scope="module")
def photo() -> bytes:
    return photos(1)[0]


def test_a_renamed_photo_is_another_file_with_the_same_pixels(photo: bytes) -> None:
    other = renamed(photo, "distinct7")
    assert other != photo
    first, second = (Image.open(io.BytesIO(data)).convert("RGB") for data in (photo, other))
    assert first.size == PHOTO_SIZE
    assert first.tobytes() == second.tobytes()


def test_the_server_takes_its_time_and_knows_what_the_caller_has(photo: bytes) -> None:
    with photo_site([photo]) as url, httpx.Client(trust_env=False) as http:
        began = time.perf_counter()
        answer = http.get(f"{url}/0/any.jpg")
        assert time.perf_counter() - began >= DELAY
        assert answer.content == renamed(photo, "any")
        assert (
            http.get(f"{url}/0/any.jpg", headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
        )
        assert http.get(f"{url}/nothing").status_code == 404


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_has_the_proportions_of_the_real_one(name: str) -> None:
    small, real = SMALL[name].encode_over_prefill(), REAL[name].encode_over_prefill()
    assert small == pytest.approx(real, rel=0.1)
