"""Three loads: one request at a time, as many as a server can do, and as they come whether it can or not."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

Request = dict[str, Any]
#: Sends a request; the future is done with the first token.
Ask = Callable[[Request], Future[Any]]

_PATIENCE = 300.0


def one_by_one(ask: Ask, requests: Sequence[Request]) -> float:
    """Mean seconds to the first token where nobody else asks."""
    began = time.perf_counter()
    for request in requests:
        ask(request).result(_PATIENCE)
    return (time.perf_counter() - began) / len(requests)


def saturate(ask: Ask, requests: Sequence[Request], at_once: int) -> float:
    """Requests a second, with ``at_once`` of them open all the time."""
    room = threading.Semaphore(at_once)
    began = time.perf_counter()
    answers = []
    for request in requests:
        room.acquire(timeout=_PATIENCE)
        answer = ask(request)
        answer.add_done_callback(lambda _: room.release())
        answers.append(answer)
    _finish(answers)
    return len(requests) / (time.perf_counter() - began)


def first_tokens(ask: Ask, requests: Sequence[Request], rate: float, seed: int) -> list[float]:
    """Seconds to each first token, of requests at exponential gaps (a Poisson process), ``rate`` a second.

    They count from the planned time, so that a slow server is charged for everyone who waits.
    """
    chance = random.Random(seed)
    seconds: list[float] = []

    def note(at: float) -> Callable[[Future[Any]], None]:
        return lambda _: seconds.append(time.perf_counter() - at)

    answers, planned = [], time.perf_counter()
    for request in requests:
        planned += chance.expovariate(rate)
        time.sleep(max(0.0, planned - time.perf_counter()))
        answer = ask(request)
        answer.add_done_callback(note(planned))
        answers.append(answer)
    _finish(answers)
    return seconds


def _finish(answers: Sequence[Future[Any]]) -> None:
    """Wait for all; one that failed fails the measurement."""
    wait(answers, timeout=_PATIENCE)
    for answer in answers:
        answer.result(0)
