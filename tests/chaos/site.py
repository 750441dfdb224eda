"""A loopback web server for the things of a corpus, slow where a scenario wants downloads to take time."""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.chaos.corpus import Thing


class _Server(ThreadingHTTPServer):
    """With room for the connections of a whole worker: the usual backlog of 5 drops a burst for seconds."""

    daemon_threads = True
    request_queue_size = 256


class Site:
    """Serves what ``offer`` was given; ``delay`` seconds pass in the middle of each body."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._pages: dict[str, bytes] = {}
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def authority(self) -> str:
        """Host and port, as ``EPD_FETCH_ALLOW_HOSTS`` wants them."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def offer(self, thing: Thing) -> str:
        """Serve a thing; returns its URL."""
        self._pages[f"/{thing.name}"] = thing.data
        return f"http://{self.authority}/{thing.name}"

    def page(self, path: str) -> bytes | None:
        """What a path serves."""
        return self._pages.get(path)

    def close(self) -> None:
        """Stop to answer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            data = site.page(self.path)
            if data is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            half = len(data) // 2
            try:
                self.wfile.write(data[:half])
                time.sleep(site.delay)
                self.wfile.write(data[half:])
            except OSError:  # the worker that asked was killed
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: standard output is the report."""

    return Handler
