"""Requests, and three kinds of load: one at a time, as fast as the server can, and at a given rate."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from enum import StrEnum
from typing import Any

Request = dict[str, Any]
#: Sends a request; the future is done with the first token.
Ask = Callable[[Request], Future[Any]]

_WAIT_SECONDS = 300.0


#: Photos that requests choose from. In the distinct mix each is another file every time.
PHOTOS = 12
MOST_IMAGES = 8


def one_by_one(ask: Ask, requests: Sequence[Request]) -> float:
    """Mean seconds to the first token with one request at a time."""
    began = time.perf_counter()
    for request in requests:
        ask(request).result(_WAIT_SECONDS)
    return (time.perf_counter() - began) / len(requests)


def saturate(ask: Ask, requests: Sequence[Request], at_once: int) -> float:
    """Requests a second, with ``at_once`` of them open all the time.

    Counted from the first answer to the last one that another request waited for: before and after that the
    server is not saturated.
    """
    room = threading.Semaphore(at_once)
    ends: list[float] = []

    def note(_: Future[Any]) -> None:
        ends.append(time.perf_counter())
        room.release()

    answers = []
    for request in requests:
        room.acquire(timeout=_WAIT_SECONDS)
        answer = ask(request)
        answer.add_done_callback(note)
        answers.append(answer)
    _finish(answers)
    counted = sorted(ends)[: len(requests) - at_once + 1]
    return (len(counted) - 1) / (counted[-1] - counted[0])


def first_tokens(ask: Ask, requests: Sequence[Request], rate: float, seed: int) -> list[float]:
    """Seconds to each first token, of requests that arrive at random, ``rate`` a second.

    Arrival times are uniform, which is a Poisson process with a known number of arrivals, so the rate is
    exactly the given one. Seconds count from the planned time, so that a slow server is charged for every
    request that waits.
    """
    chance = random.Random(seed)
    seconds: list[float] = []

    def note(at: float) -> Callable[[Future[Any]], None]:
        return lambda _: seconds.append(time.perf_counter() - at)

    answers, began = [], time.perf_counter()
    planned = sorted(began + chance.uniform(0, len(requests) / rate) for _ in requests)
    for request, at in zip(requests, planned, strict=True):
        time.sleep(max(0.0, at - time.perf_counter()))
        answer = ask(request)
        answer.add_done_callback(note(at))
        answers.append(answer)
    _finish(answers)
    return seconds


def _finish(answers: Sequence[Future[Any]]) -> None:
    """Wait for all. Raises the error of one that failed."""
    wait(answers, timeout=_WAIT_SECONDS)
    for answer in answers:
        answer.result(0)


class Mix(StrEnum):
    """Which images the requests have."""

    REPEATED = "repeated"  #: files that were requested before
    DISTINCT = "distinct"  #: files that were never requested before


class Requests:
    """Makes requests of 1 to 8 images by URL."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._numbers = itertools.count()

    def warm_up(self) -> list[Request]:
        """Every repeated file at least once."""
        known = [self._url(photo, Mix.REPEATED) for photo in range(PHOTOS)]
        return [self._request("warm-up", known[:MOST_IMAGES]), self._request("warm-up", known[-MOST_IMAGES:])]

    def of(self, mix: Mix, count: int, seed: int) -> list[Request]:
        """So many requests. Ids, numbers of images and photos depend only on the arguments."""
        chance = random.Random(f"{mix}{seed}")
        sizes = itertools.islice(_sizes(chance), count)
        return [
            self._request(f"{mix}-{seed}-{number}", list(self._urls(mix, chance, size, f"{seed}x{number}")))
            for number, size in enumerate(sizes)
        ]

    def _urls(self, mix: Mix, chance: random.Random, size: int, name: str) -> Iterator[str]:
        for photo in chance.sample(range(PHOTOS), size):
            yield self._url(photo, mix if mix is Mix.REPEATED else f"{mix}{name}")

    def _url(self, photo: int, name: str) -> str:
        return f"{self._site}/{photo}/{name}.jpg"

    def _request(self, name: str, urls: list[str]) -> Request:
        images = [{"type": "image", "url": url} for url in urls]
        parts = ["Look at these. ", *images, " What do they have in common? "]
        return {"request_id": f"{name}-{next(self._numbers)}", "model": "qwen", "parts": parts, "limit": 1}


def _sizes(chance: random.Random) -> Iterator[int]:
    """Numbers of images: each equally often, in random order, so that all loads are the same work."""
    while True:
        yield from chance.sample(range(1, MOST_IMAGES + 1), MOST_IMAGES)
