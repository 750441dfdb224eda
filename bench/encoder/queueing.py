"""Small images behind a short and behind a long queue: what an image costs should not depend on its length.

Jobs are posted without waiting, each as soon as there is room below the wanted length, so both queues stay as
long as they are while the images are counted. An image is queued from its job's start until its end. If
downloads run ahead of decoding, a long queue is also paid for in images that are not finished yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection

from bench.encoder.result import Bar, Result, progress_bar, table
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind
from bench.encoder.site.media import running_media
from bench.encoder.site.stack import Site, running_site
from epd.settings import Settings
from epd.store.admissions import Admissions
from epd.store.open import open_store

_SHORT, _LONG = 100, 20_000
_JOB_ITEMS, _LARGE_JOB_ITEMS = 25, 250
_MOST_ITEMS = 40_000
_TICK = 0.05
#: Seconds of a window, and those before it in which the queue settles.
_SECONDS, _SETTLE = 10.0, 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """What a stack did while ``queued`` images waited. CPU milliseconds are the stack's."""

    queued: int
    images_per_s: float
    downloads_per_s: float
    cpu_ms_an_image: float


@dataclass(slots=True)
class Backlog:
    """The queue of a site, from the images that were posted and those that the store counts as in flight."""

    site: Site
    http: HTTPConnection
    admissions: Admissions
    posted: int = 0

    @property
    def length(self) -> int:
        """Images in flight."""
        return self.admissions.held().items

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

    def measure(self, length: int) -> Window:
        """What happens at this length."""
        self.http.close()  # the server closes idle connections; the next request opens a new one
        self.keep(length, _SETTLE)
        meter, done, began = self.site.meter(), self.posted - self.length, time.monotonic()
        downloads = self.site.media.stats().requests
        self.keep(length, _SECONDS)
        count, seconds = self.posted - self.length - done, time.monotonic() - began
        return Window(
            queued=length,
            images_per_s=round(count / seconds, 1),
            downloads_per_s=round((self.site.media.stats().requests - downloads) / seconds, 1),
            cpu_ms_an_image=round(1000 * sum(meter.costs().cpu.values()) / count, 2),
        )

    def _post(self, count: int) -> None:
        items = [{"type": "image", "url": url} for url in self.site.media.new_urls(Kind.SMALL, count)]
        body = json.dumps({"items": items, "wait": 0})
        self.http.request("POST", "/v1/encode", body, {"Content-Type": "application/json"})
        with self.http.getresponse() as answer:
            text = answer.read()
        if answer.status != 202:
            raise RuntimeError(f"a job was not taken: {answer.status} {text[:500]!r}")
        self.posted += count


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
    overrides = {"EPD_MAX_QUEUE_ITEMS": str(_MOST_ITEMS), "EPD_MAX_QUEUE_BYTES": str(1 << 40)}
    with (
        running_media(delay=0.0) as media,
        running_site(media, device, overrides) as site,
        closing(HTTPConnection("127.0.0.1", site.port, timeout=60)) as http,
    ):
        settings = Settings(store_url=site.stack.settings["EPD_STORE_URL"])
        yield Backlog(site, http, open_store(settings).admissions)


def _result(short: Sequence[Window], long: Window, device: DeviceModel) -> Result:
    ratio = long.images_per_s / statistics.mean(window.images_per_s for window in short)
    bar = Bar("queue_cost_ratio", round(ratio, 3), 0.9)
    windows = [asdict(window) for window in (short[0], long, *short[1:])]
    figures = {
        "device": str(device),
        "ratio": bar.value,
        "windows": windows,
        "max_queue_items": _MOST_ITEMS,
    }
    columns = table(list(windows[0]), [list(window.values()) for window in windows])
    return Result(figures, f"images of 2 KB, jobs of {_JOB_ITEMS}; {device}\n{columns}", (bar,))
