"""A closed loop: so many requests under way, each followed by the next one, for so many seconds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection

#: Requests under way, and images of each.
AT_ONCE = 12
IMAGES = 4
_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    ``check`` raises ``RuntimeError`` if a body is not the rows of so many images. ``cpu_seconds`` are those
    of all its processes so far.
    """

    name: str
    port: int
    path: str
    check: Callable[[bytes, int], None]
    cpu_seconds: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of each request, of all from the first request to the last answer, and of the side's CPU."""

    latencies: Sequence[float]
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Images a second."""
        return IMAGES * len(self.latencies) / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of CPU an image, of all the side's processes."""
        return 1000 * self.cpu / (IMAGES * len(self.latencies))


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of several rounds: images a second, seconds of a request at two percentiles, CPU an image."""

    rate: float
    p50: float
    p99: float
    cpu_ms: float
    requests: int


def summary(rounds: Sequence[Round]) -> Figures:
    """Each figure is the median of its values in the rounds; ``requests`` are those of all."""
    return Figures(
        rate=statistics.median(one.rate for one in rounds),
        p50=statistics.median(percentile(one.latencies, 50) for one in rounds),
        p99=statistics.median(percentile(one.latencies, 99) for one in rounds),
        cpu_ms=statistics.median(one.cpu_ms for one in rounds),
        requests=sum(len(one.latencies) for one in rounds),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent * len(ordered) / 100) - 1)]


def drive(target: Target, new_body: Callable[[], bytes], seconds: float) -> Round:
    """Send new bodies until so many seconds have passed, and wait for all answers. Threads call ``new_body``.

    Raises:
        RuntimeError: an answer is not that of its images.
    """
    cpu, began = target.cpu_seconds(), time.perf_counter()

    def one_after_another(_: int) -> list[float]:
        found = []
        with closing(HTTPConnection("127.0.0.1", target.port, timeout=_TIMEOUT)) as connection:
            while time.perf_counter() - began < seconds:
                found.append(_ask(connection, target, new_body()))
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        latencies = [one for found in pool.map(one_after_another, range(AT_ONCE)) for one in found]
    return Round(latencies, time.perf_counter() - began, target.cpu_seconds() - cpu)


def _ask(connection: HTTPConnection, target: Target, body: bytes) -> float:
    began = time.perf_counter()
    connection.request("POST", target.path, body, {"Content-Type": "application/json"})
    with connection.getresponse() as answer:
        content, status = answer.read(), answer.status
    seconds = time.perf_counter() - began
    if status != 200:
        raise RuntimeError(f"{target.name}: status {status}: {content[:500]!r}")
    target.check(content, IMAGES)
    return seconds
