"""JPEGs that benchmarks encode, and a web server on loopback for them."""

from __future__ import annotations

import io
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

#: (width, height) of ``photos``, in pixels.
PHOTO_SIZE = (1920, 1080)

#: Side of ``thumbnails`` in pixels. The JPEG has about 2 KB: little for an image, much for JSON.
_THUMBNAIL_SIDE = 64
_QUALITY = 85


def photos(count: int, size: tuple[int, int] = PHOTO_SIZE, quality: int = _QUALITY) -> list[bytes]:
    """So many different JPEGs: two gradients, and noise as coarse as a camera's. ``size`` is even pixels."""
    return [_photo(np.random.default_rng(seed), size, quality) for seed in range(count)]


def _photo(chance: np.random.Generator, size: tuple[int, int], quality: int) -> bytes:
    width, height = size
    across = np.linspace(0, 255, width)[None, :, None] * chance.random(3)
    down = np.linspace(0, 255, height)[:, None, None] * chance.random(3)
    noise = chance.integers(0, 24, (height // 2, width // 2, 3)).repeat(2, 0).repeat(2, 1)
    pixels = (across / 2 + down / 2 + noise).clip(0, 255).astype(np.uint8)
    return _jpeg(Image.fromarray(pixels), quality)


def thumbnails(count: int, seed: int) -> list[bytes]:
    """So many different small JPEGs; the same ones for the same seed."""
    chance = random.Random(seed)
    return [_thumbnail(chance) for _ in range(count)]


def _thumbnail(chance: random.Random) -> bytes:
    coarse = Image.frombytes("RGB", (8, 8), chance.randbytes(8 * 8 * 3))
    return _jpeg(coarse.resize((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE), Image.Resampling.BICUBIC))


def _jpeg(image: Image.Image, quality: int = _QUALITY) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


def renamed(photo: bytes, name: str) -> bytes:
    """The same image as another file: a JPEG comment at its start holds ``name``."""
    text = name.encode()
    return photo[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text + photo[2:]


@contextmanager
def served(find: Callable[[str], bytes | None], *, delay: float = 0.0) -> Iterator[str]:
    """Serve JPEGs over kept connections, with ETags; yields the URL without a slash at the end.

    ``find`` gives the file of a path, such as ``/0.jpg``, or ``None`` for status 404. Each answer comes after
    ``delay`` seconds, as from a server far away.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            time.sleep(delay)
            body = find(self.path)
            if body is None:
                self.send_error(404)
                return
            tag = f'"{self.path}"'
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
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="images", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
