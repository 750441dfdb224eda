"""A loopback web site whose answers a test can hold back, and helpers for downloads from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from epd.contracts.media import Modality, Source
from epd.contracts.messages import FetchMessage
from epd.identity import download_key
from tests.unit.tasks.flow_kit import Bench, png

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO


class Site(ThreadingHTTPServer):
    """One page at ``/a`` with the status and headers that a test gives it, and further pages without them.

    Each answer waits until the gate is open. The site is honest, unless it ``lies`` that nothing changed.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.body, self.status = png(), 200
        self.headers: dict[str, str] = {}
        self.moved_to = ""
        self.lies = False
        self.others: dict[str, bytes] = {}
        self.seen: list[tuple[str, int, dict[str, str]]] = []
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def at(self, path: str) -> Source:
        return Source(url=f"http://127.0.0.1:{self.server_port}{path}")

    @property
    def source(self) -> Source:
        return self.at("/a")

    @property
    def statuses(self) -> list[int]:
        return [status for _, status, _ in self.seen]

    @property
    def hits(self) -> int:
        return len(self.seen)

    def answer(self, path: str, asked: dict[str, str]) -> int:
        """The status of an answer."""
        if path == "/a" and self.moved_to:
            return 302
        if path not in {"/a", self.moved_to, *self.others}:
            return 404
        known = (asked.get("If-None-Match"), asked.get("If-Modified-Since"))
        current = (self.headers.get("ETag"), self.headers.get("Last-Modified"))
        same = any(mine is not None and mine == theirs for mine, theirs in zip(current, known, strict=True))
        return 304 if same or (self.lies and any(known)) else self.status


class _Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site, asked = self.server, dict(self.headers)
        status = site.answer(self.path, asked)
        site.seen.append((self.path, status, asked))
        site.entered.set()
        assert site.gate.wait(20)
        body = site.others.get(self.path, site.body) if status == 200 else b""
        self.send_response_only(status)
        for name, value in site.headers.items():
            self.send_header(name, value)
        if status == 302:
            self.send_header("Location", site.moved_to)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def page_site() -> Iterator[Site]:
    server = Site()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()
    thread.join(5)


def fetch_during(bench: Bench, site: Site, leader: FetchMessage, others: list[FetchMessage]) -> None:
    """Fetch the others while the leader's download is held at the server."""
    site.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        led = pool.submit(bench.fetch, leader)
        assert site.entered.wait(20)
        for other in others:
            bench.fetch(other)
        site.gate.set()
        led.result(20)


def complete_all(bench: Bench, has_audio: bool | None = None) -> None:
    for encode in bench.outbox.encodes:
        present = has_audio if encode.wanted.track is VIDEO else None
        bench.complete(encode.wanted, encode.digest, has_audio=present)


def in_flight(bench: Bench, site: Site, kind: Modality = IMAGE) -> bool:
    """Whether the site's page is being downloaded."""
    return bench.store.flights.active([download_key(site.source.url or "", kind)])[0]
