"""One caller's slow downloads do not hold up another caller, an upload, or an interactive item."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from epd.contracts.job import Priority
from epd.contracts.media import Modality
from epd.store.values import BlobKind
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line, Site, png, served
from tests.integration.transport_kit import wait_until

IMAGE = Modality.IMAGE
#: URLs of a bulk job, as many as a request may have.
MANY = 256
#: Seconds by which another caller's item may be late.
LATE = 3.0


class Dripping:
    """A server that promises a long body and sends one byte a second."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._ended = threading.Event()
        self.open = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}/{name}"

    def close(self) -> None:
        self._ended.set()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self.open += 1
                threading.Thread(target=self._drip, args=(connection,), daemon=True).start()

    def _drip(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not self._ended.wait(1):
                connection.sendall(b"x")


@contextmanager
def dripping() -> Iterator[Dripping]:
    server = Dripping()
    yield server
    server.close()


@pytest.fixture
def site() -> Iterator[Site]:
    with served() as site:
        yield site


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with opened(Line, tmp_path) as line:
        line.start("-Q", "fetch,decode", "-n", "media@%h", EPD_DECODE_PROCESSES="1")
        wait_until(lambda: line.alive("fetch", "decode"), within=40, what="worker up")
        line.announce()
        yield line


@pytest.mark.parametrize("priority", [Priority.BULK, Priority.INTERACTIVE])
@pytest.mark.parametrize("jobs", [1, 3])
def test_a_job_of_dripping_urls_delays_nobody(
    line: Line, site: Site, priority: Priority, jobs: int
) -> None:
    site.pages["/a.png"] = png((1, 2, 3))
    with dripping() as drip:
        for job in range(jobs):
            slow = [(IMAGE, drip.url(f"{job}-{number}")) for number in range(MANY)]
            line.submit(*slow, seconds=600, priority=priority)
        wait_until(lambda: drip.open >= 8, within=10, what="downloads that drip")
        upload = keep_upload(line, png((4, 5, 6)))
        for source in (f"{site.url}/a.png", upload):
            began = time.monotonic()
            job_id = line.submit((IMAGE, source), priority=priority)
            line.wait_encodes(job_id, 1, within=LATE)
            assert time.monotonic() - began < LATE


def test_an_interactive_item_does_not_wait_behind_bulk(line: Line, site: Site) -> None:
    site.delay = 0.2
    bulk = [(IMAGE, f"{site.url}/{number}.png") for number in range(4 * MANY)]
    for number in range(4 * MANY):
        site.pages[f"/{number}.png"] = png((number % 256, number // 256, 7))
    site.pages["/urgent.png"] = png((9, 9, 9))
    for at in range(0, len(bulk), MANY):
        line.submit(*bulk[at : at + MANY], priority=Priority.BULK, seconds=600)
    wait_until(lambda: len(site.answers) >= 64, within=20, what="bulk downloads")
    job_id = line.submit((IMAGE, f"{site.url}/urgent.png"))
    line.wait_encodes(job_id, 1, within=LATE)
    assert len(site.answers) < len(bulk), "bulk was done before, so nothing was tested"


def keep_upload(line: Line, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with line.store.blobs.create(BlobKind.SOURCE) as (name, file):
        file.write(data)
    line.store.blobs.keep_media(name, digest)
    return digest
