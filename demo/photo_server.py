"""A loopback web server with one photo, so that the demo can fetch a URL without the internet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def served_photo(path: Path) -> Iterator[str]:
    """Serve the file ``path`` under its own name while the block runs; gives the server's URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(path))
    thread = threading.Thread(target=server.serve_forever, name="photo-server", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def _handler(path: Path) -> type[BaseHTTPRequestHandler]:
    body = path.read_bytes()
    etag = f'"{len(body):x}"'

    class PhotoHandler(BaseHTTPRequestHandler):
        """Answers for the one photo, with an ETag so that a second fetch can be a 304."""

        timeout = 10

        def do_GET(self) -> None:
            """200 with the photo, 304 when the caller has it, 404 for anything else."""
            if self.path != f"/{path.name}":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            known = self.headers.get("If-None-Match") == etag
            self.send_response(HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK)
            self.send_header("ETag", etag)
            if not known:
                self.send_header("Content-Type", "image/jpeg")
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if not known:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the demo's own output is what counts."""

    return PhotoHandler
