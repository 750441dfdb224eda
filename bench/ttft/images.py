"""Photos of 1080p, and a web server that takes its time."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

SIZE = (1920, 1080)
#: Seconds before an answer, as a server far away has.
DELAY = 0.05
_QUALITY = 85
_PATH = re.compile(r"/(\d+)/(\w+)\.jpg")


def photos(count: int) -> list[bytes]:
    """So many JPEGs: two gradients, and noise as coarse as a camera's."""
    return [_photo(np.random.default_rng(seed)) for seed in range(count)]


def _photo(chance: np.random.Generator) -> bytes:
    width, height = SIZE
    across = np.linspace(0, 255, width)[None, :, None] * chance.random(3)
    down = np.linspace(0, 255, height)[:, None, None] * chance.random(3)
    noise = chance.integers(0, 24, (height // 2, width // 2, 3)).repeat(2, 0).repeat(2, 1)
    pixels = (across / 2 + down / 2 + noise).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def renamed(photo: bytes, name: str) -> bytes:
    """The same picture as another file: ``name`` is in a comment behind the start of the JPEG."""
    text = name.encode()
    return photo[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text + photo[2:]


@contextmanager
def served(files: Sequence[bytes]) -> Iterator[str]:
    """Serve ``/{number}/{name}.jpg``: a photo, as a file of that name, after ``DELAY`` seconds."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            time.sleep(DELAY)
            found = _PATH.fullmatch(self.path)
            if found is None:
                self.send_error(404)
                return
            tag = f'"{self.path}"'
            body = renamed(files[int(found[1])], found[2])
            known = self.headers.get("If-None-Match") == tag
            self.send_response(304 if known else 200)
            self.send_header("ETag", tag)
            if not known:
                self.send_header("Content-Type", "image/jpeg")
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if not known:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="photos", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
