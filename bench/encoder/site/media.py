"""A media server on loopback in a process of its own, whose CPU time is nobody's.

``/<kind>/<name>`` is a file of that kind. Each name gives other bytes, so a name that was never used is media
that nobody has seen. Each answer comes after a delay, as from a server far away. ``/stats`` counts.

``python -m bench.encoder.site.media DELAY`` prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

from bench.encoder.site.files import Kind, make_files, named

_ROOT = Path(__file__).parents[3]
_END = b"\r\n\r\n"
#: Files of a kind that differ in content. The others differ in their name alone.
_CONTENTS = 8


@dataclass(frozen=True, slots=True)
class Stats:
    """What a server has seen: media requests, and connections."""

    requests: int
    connections: int


@dataclass(frozen=True, slots=True)
class Media:
    """A running server. Its URLs are never used twice."""

    url: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _start: int = field(default_factory=time.time_ns)

    @property
    def address(self) -> str:
        """Host and port, as in ``EPD_FETCH_ALLOW_HOSTS``."""
        return self.url.removeprefix("http://")

    def new_urls(self, kind: Kind, count: int) -> list[str]:
        """URLs of files that nobody has asked for before."""
        return [f"{self.url}/{kind}/{self._start}-{next(self._numbers)}" for _ in range(count)]

    def stats(self) -> Stats:
        """What it has seen so far; this question is not counted."""
        with urllib.request.urlopen(f"{self.url}/stats") as answer:
            return Stats(**json.load(answer))


@contextmanager
def running_media(delay: float = 0.05) -> Iterator[Media]:
    """A server whose answers come after ``delay`` seconds."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(delay)], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError("the media server did not start")
            yield Media(f"http://127.0.0.1:{int(port)}")
        finally:
            process.stdin.close()


class _Server:
    """The files by kind, and the counts."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.requests = self.connections = 0
        self._files = {kind.value: make_files(kind, _CONTENTS) for kind in Kind}

    def answer(self, path: str) -> bytes:
        """The whole answer to a request for a path."""
        _, kind, *rest = path.split("/", 2)
        if kind == "stats":
            counts = {"requests": self.requests, "connections": self.connections}
            return _answer(b"200 OK", b"application/json", json.dumps(counts).encode())
        files = self._files.get(kind)
        if files is None or not rest:
            return _answer(b"404 Not Found", b"text/plain", b"")
        self.requests += 1
        file = files[zlib.crc32(path.encode()) % len(files)]
        return _answer(b"200 OK", Kind(kind).content_type.encode(), named(Kind(kind), file, path))


def _answer(status: bytes, content_type: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d" % (status, content_type, len(body))
    return b"".join((head, _END, body))


class _Connection(asyncio.Protocol):
    """One kept connection. Requests have no body, and the next one comes after the answer."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(_END):
            path = self._received.split(b" ", 2)[1].decode()
            self._received = b""
            asyncio.get_running_loop().call_later(self._server.delay, self._send, path)

    def _send(self, path: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._server.answer(path))


async def _serve(delay: float) -> None:
    loop = asyncio.get_running_loop()
    site = _Server(delay)
    listener = await loop.create_server(lambda: _Connection(site), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve until standard input ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(float(sys.argv[1])))


if __name__ == "__main__":
    main()
