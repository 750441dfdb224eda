"""Small pictures, and a server of the same ones: each can be asked for by URL, by upload id and inline."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image

#: Pixels a side: some 2 KB as JPEG, which is small for a picture and large for JSON.
_SIDE = 64
_QUALITY = 85


def pictures(count: int, seed: int) -> list[bytes]:
    """So many different JPEGs; the same ones for the same seed."""
    chance = random.Random(seed)
    return [_picture(chance) for _ in range(count)]


def _picture(chance: random.Random) -> bytes:
    coarse = Image.frombytes("RGB", (8, 8), chance.randbytes(8 * 8 * 3))
    out = io.BytesIO()
    coarse.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


@contextmanager
def served(files: Mapping[str, bytes]) -> Iterator[str]:
    """A server on loopback for files by path (``/0.jpg``); its URL without a slash at the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = files.get(self.path)
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Type", "image/jpeg")
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="pictures", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
