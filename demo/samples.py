"""The inputs of the demo: the files of ``examples/media``, one of them served over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MEDIA = Path(__file__).parents[1] / "examples" / "media"
QUERY = "query.jpg"
CLIP = "launch.mp4"
AUDIO = "speech.ogg"
SERVED = "galaxies.jpg"  #: given as a URL of the demo's own server


@dataclass(frozen=True)
class Sample:
    """One item of the demo: its name in the table, its media type, and a path or URL for the client."""

    name: str
    type: str
    source: str

    def as_item(self) -> dict[str, str]:
        """The item as ``epd.client`` takes it."""
        kind = "url" if self.source.startswith("http://") else "path"
        return {"id": self.name, "type": self.type, kind: self.source}


def demo_samples(server_url: str) -> list[Sample]:
    """Five photos and one by URL, a video with speech and an audio file, in the order of the table."""
    photos = ["astronaut.jpg", "cat.jpg", "coffee.jpg", "rocket.jpg", QUERY]
    samples = [Sample(name, "image", str(MEDIA / name)) for name in photos]
    samples.append(Sample(SERVED, "image", f"{server_url}/{SERVED}"))
    samples.append(Sample(CLIP, "video", str(MEDIA / CLIP)))
    samples.append(Sample(AUDIO, "audio", str(MEDIA / AUDIO)))
    return samples


def reference_texts() -> dict[str, str]:
    """What is said in the clips, by file name."""
    texts: dict[str, str] = json.loads((MEDIA / "REFERENCES.json").read_text("utf-8"))
    return texts


@contextmanager
def served_photo(path: Path) -> Iterator[str]:
    """Serve the file ``path`` under its own name during the block; yields the URL of the server."""
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
        """Serves one photo, with an ETag so that a second fetch can be a 304."""

        timeout = 10

        def do_GET(self) -> None:
            """Answer 200 with the photo, 304 when the client has it, 404 for any other path."""
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
            """Log nothing, so that only the demo's own output is shown."""

    return PhotoHandler
