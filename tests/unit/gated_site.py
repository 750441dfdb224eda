"""A site whose answers wait at a gate, and fetches of others while one waits there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tasks_kit import Bench, png

from epd.contracts.media import Modality, Source
from epd.contracts.messages import FetchMessage
from epd.identity import download_key

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO


class Site(ThreadingHTTPServer):
    """Answers without validators, and holds each answer back until the gate is open."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.body, self.status = png(), 200
        self.hits = 0
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    @property
    def source(self) -> Source:
        return Source(url=f"http://127.0.0.1:{self.server_port}/a")


class Pages(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.hits += 1
        self.server.entered.set()
        assert self.server.gate.wait(20)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def gated_site() -> Iterator[Site]:
    server = Site()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()
    thread.join(5)


def fetch_during(bench: Bench, site: Site, flyer: FetchMessage, others: list[FetchMessage]) -> None:
    """Fetch the others while the flyer's download is held at the server."""
    site.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        flown = pool.submit(bench.fetch, flyer)
        assert site.entered.wait(20)
        for other in others:
            bench.fetch(other)
        site.gate.set()
        flown.result(20)


def complete_all(bench: Bench, sound: bool | None = None) -> None:
    for encode in bench.outbox.encodes:
        present = sound if encode.wanted.track is VIDEO else None
        bench.complete(encode.wanted, encode.digest, sound=present)


def flies(bench: Bench, site: Site, kind: Modality = IMAGE) -> bool:
    return bench.store.flights.flying([download_key(site.source.url or "", kind)])[0]
