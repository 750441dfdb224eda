"""A loopback HTTP server that misbehaves on purpose, one fault a route. Counts requests by raw target."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MEDIA = Path(__file__).parent / "media"
PNG = (MEDIA / "CAC-06a.png").read_bytes()
SIGNED = "/sig/a%2fb%20c.png?e=1%40x%2By&s=Vcgw%2Fyb%3D&t=%41~"


class BadServer(ThreadingHTTPServer):
    """Serves until closed. ``hits`` counts requests; ``ending`` frees the routes that hang."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hits: Counter[str] = Counter()
        self.connections = 0
        self.last_headers: dict[str, str] = {}
        self.ending = threading.Event()
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def process_request(self, *request: object) -> None:
        self.connections += 1
        super().process_request(*request)  # type: ignore[arg-type]

    def handle_error(self, *_: object) -> None:
        """Keep quiet when a client hangs up."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def authority(self) -> str:
        """How tests name this server; redirects name it 127.0.0.1, which nobody allowed."""
        return f"localhost:{self.port}"

    def url(self, target: str) -> str:
        return f"http://{self.authority}{target}"

    def __enter__(self) -> BadServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.shutdown()
        self._thread.join(5)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: BadServer

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        self.server.hits[self.path] += 1
        self.server.last_headers = {name.lower(): value for name, value in self.headers.items()}
        route = ROUTES.get(self.path.partition("?")[0])
        try:
            if route is None:
                self.reply(404, b"no such case")
            else:
                route(self)
        except OSError:
            self.close_connection = True

    @property
    def tries(self) -> int:
        return self.server.hits[self.path]

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def break_off(self, body: bytes, stated: int) -> None:
        self.close_connection = True
        self.reply(200, body, Content_Length=str(stated))


def _drip(handler: _Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(PNG)))
    handler.end_headers()
    _write_slowly(handler, PNG)


def _drip_headers(handler: _Handler) -> None:
    _write_slowly(handler, b"HTTP/1.1 200 OK\r\n" + b"X-Padding: " + b"x" * 1000)


def _write_slowly(handler: _Handler, data: bytes) -> None:
    for index in range(len(data)):
        handler.wfile.write(data[index : index + 1])
        handler.wfile.flush()
        if handler.server.ending.wait(0.1):
            return


def _endless(handler: _Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for _ in range(4096):
        handler.wfile.write(b"100000\r\n" + b"\0" * 0x100000 + b"\r\n")


def _broken_chunks(handler: _Handler) -> None:
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"40\r\n" + PNG[:64] + b"\r\n")


def _short_body(handler: _Handler) -> None:
    if handler.tries >= 3:
        handler.reply(200, PNG)
    else:
        handler.break_off(PNG[: len(PNG) // 2], len(PNG))


def _gzip_bomb(handler: _Handler) -> None:
    handler.reply(200, _bomb(256), Content_Encoding="gzip")


def _bomb(mebibytes: int) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    zeros = bytes(1 << 20)
    return b"".join(packer.compress(zeros) for _ in range(mebibytes)) + packer.flush()


def _signed(handler: _Handler) -> None:
    handler.reply(200 if handler.path == SIGNED else 403, PNG)


def _changing(handler: _Handler) -> None:
    if handler.headers.get("If-None-Match") == '"a"':
        handler.reply(304, ETag='"a"')
    else:
        handler.reply(200, PNG, ETag='"a"', Last_Modified="Mon, 05 Oct 2026 07:28:00 GMT")


def _until(tries: int, status: int, **headers: str) -> Callable[[_Handler], None]:
    def route(handler: _Handler) -> None:
        if handler.tries > tries:
            handler.reply(200, PNG)
        else:
            handler.reply(status, b"later", **headers)

    return route


def _redirect(to: str, status: int = 302) -> Callable[[_Handler], None]:
    return lambda handler: handler.reply(status, Location=to.format(port=handler.server.port))


ROUTES: dict[str, Callable[[_Handler], None]] = {
    "/ok.png": lambda handler: handler.reply(200, PNG),
    "/canary": lambda handler: handler.reply(200, PNG),
    "/redir-meta": _redirect("http://169.254.169.254/latest/meta-data/"),
    "/redir-canary": _redirect("http://127.0.0.1:{port}/canary"),
    "/redir-canary6": _redirect("http://[::ffff:127.0.0.1]:{port}/canary", 307),
    "/redir-file": _redirect("file:///etc/hostname"),
    "/redir-login": _redirect("http://user:secret@localhost:{port}/canary"),
    "/redir-loop": _redirect("/redir-loop"),
    "/redir-rel": _redirect("ok.png", 308),
    "/redir-nowhere": lambda handler: handler.reply(302),
    "/silent": lambda handler: handler.server.ending.wait(30) and None,
    "/drip": _drip,
    "/drip-headers": _drip_headers,
    "/endless": _endless,
    "/broken-chunks": _broken_chunks,
    "/huge-length": lambda handler: handler.break_off(PNG[:40], 50 * 10**9),
    "/short-body": _short_body,
    "/gzip": lambda handler: handler.reply(200, gzip.compress(PNG), Content_Encoding="gzip"),
    "/gzip-gzip": lambda handler: handler.reply(
        200, gzip.compress(gzip.compress(PNG)), Content_Encoding="gzip, gzip"
    ),
    "/gzip-lie": lambda handler: handler.reply(200, PNG, Content_Encoding="gzip"),
    "/gzip-bomb": _gzip_bomb,
    "/brotli-lie": lambda handler: handler.reply(200, PNG, Content_Encoding="br"),
    "/304": lambda handler: handler.reply(304),
    "/404-image": lambda handler: handler.reply(404, PNG),
    "/206": lambda handler: handler.reply(206, PNG[:10]),
    "/sig/a%2fb%20c.png": _signed,
    "/429": _until(1, 429, Retry_After="1"),
    "/503-twice": _until(2, 503),
    "/503-always": _until(99, 503, Retry_After="3600"),
    "/500-always": _until(99, 500),
    "/403-always": _until(99, 403),
    "/changing.png": _changing,
    "/cookie": lambda handler: handler.reply(200, PNG, Set_Cookie="who=me"),
}
