"""Small images behind a short and behind a long queue: what an image costs should not depend on its length.

Jobs are posted without waiting, each as soon as there is room below the wanted length, so both queues stay as
long as they are while the images are counted. An image is queued from its job's start until its download.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from bench.encoder.result import Bar, Result, progress_bar, table
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind
from bench.encoder.site.media import running_media
from bench.encoder.site.stack import Site, running_site
from epd.telemetry.counters import Count

_SHORT, _LONG = 100, 20_000
_JOB_ITEMS, _LARGE_JOB_ITEMS = 25, 250
_MOST_ITEMS = 40_000
_TICK = 0.05
#: Seconds of a window, and those before it in which the queue settles.
_SECONDS, _SETTLE = 10.0, 2.0


@dataclass(slots=True)
class Backlog:
    """The queue of a site, from the jobs that were posted and the images that were downloaded."""

    site: Site
    http: HTTPConnection
    posted: int = 0

    @property
    def length(self) -> int:
        """Images that wait for their download."""
        return self.posted - self.site.media.stats().requests

    def fill(self, length: int) -> None:
        """Post large jobs until so many images wait."""
        while self.length < length:
            self._post(_LARGE_JOB_ITEMS)

    def keep(self, length: int, seconds: float) -> None:
        """Keep the queue at a length for so long, with small jobs."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.length + _JOB_ITEMS <= length:
                self._post(_JOB_ITEMS)
            else:
                time.sleep(_TICK)

    def measure(self, length: int) -> tuple[float, float]:
        """Images encoded a second at this length, and CPU milliseconds of the stack for each."""
        self.http.close()  # the server closes idle connections; the next request opens a new one
        self.keep(length, _SETTLE)
        meter, (counted, at) = self.site.meter(), self._encoded()
        began = time.monotonic()
        self.keep(length, _SECONDS)
        cpu = sum(meter.costs().cpu.values()) / (time.monotonic() - began)
        later_counted, later_at = self._encoded()
        rate = (later_counted - counted) / (later_at - at)
        return rate, 1000 * cpu / rate

    def _post(self, count: int) -> None:
        items = [{"type": "image", "url": url} for url in self.site.media.new_urls(Kind.SMALL, count)]
        self._ask("POST", "/v1/encode", {"items": items, "wait": 0})
        self.posted += count

    def _encoded(self) -> tuple[float, float]:
        """Images encoded so far, and when the GPU worker counted them."""
        workers = self._ask("GET", "/v1/status")["workers"]
        (worker,) = (one for one in workers if one["kind"] == "encode")
        done = sum(value for key, value in worker["counters"].items() if key.startswith(Count.ENCODE_ITEMS))
        return done, time.monotonic() - worker["age"]

    def _ask(self, method: str, path: str, document: object = None) -> Any:
        body = None if document is None else json.dumps(document)
        self.http.request(method, path, body, {"Content-Type": "application/json"})
        with self.http.getresponse() as answer:
            text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")
        return json.loads(text)


def measure(options: argparse.Namespace) -> Result:
    """A short queue, a long one on a second stack, then the short one again. The other stack is idle."""
    device = DeviceModel()
    with progress_bar("queue", 4) as step, _backlog(device) as one:
        step(f"{_SHORT} queued")
        short = [one.measure(_SHORT)]
        with _backlog(device) as other:
            step("filling the queue")
            other.fill(_LONG)
            step(f"{_LONG} queued")
            long = other.measure(_LONG)
        step(f"{_SHORT} queued again")
        short.append(one.measure(_SHORT))
    return _result(short, long, device)


@contextmanager
def _backlog(device: DeviceModel) -> Iterator[Backlog]:
    """The queue of a new stack."""
    settings = {"EPD_MAX_QUEUE_ITEMS": str(_MOST_ITEMS), "EPD_MAX_QUEUE_BYTES": str(1 << 40)}
    with (
        running_media(delay=0.0) as media,
        running_site(media, device, settings) as site,
        closing(HTTPConnection("127.0.0.1", site.port, timeout=60)) as http,
    ):
        yield Backlog(site, http)


def _result(short: Sequence[tuple[float, float]], long: tuple[float, float], device: DeviceModel) -> Result:
    ratio = long[0] / statistics.mean(rate for rate, _ in short)
    bar = Bar("queue_cost_ratio", round(ratio, 3), 0.9)
    rows = [(_SHORT, *_rounded(short[0])), (_LONG, *_rounded(long)), (_SHORT, *_rounded(short[1]))]
    header = ("queued", "images_per_s", "cpu_ms_an_image")
    figures = {
        "device": str(device),
        "ratio": bar.value,
        "windows": [dict(zip(header, row, strict=True)) for row in rows],
        "max_queue_items": _MOST_ITEMS,
    }
    return Result(figures, f"images of 2 KB, jobs of {_JOB_ITEMS}; {device}\n{table(header, rows)}", (bar,))


def _rounded(measured: tuple[float, float]) -> tuple[float, float]:
    return round(measured[0], 1), round(measured[1], 2)
