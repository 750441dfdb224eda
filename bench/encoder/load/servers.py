"""``python -m bench.encoder.load.servers serial|threaded``: encoder servers without epd.

Both answer ``POST /v1/encode`` for images by URL, with requests, Pillow, the processor that is published for
DINOv2, and a forward on the simulated device. They print their port and serve until their input ends.

serial: one request after another, and one item after another; a forward for the images of a request.
threaded: a thread for each connection, and 32 for items; a forward for each image. The device runs one of
them at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from bench.encoder.site.device import DeviceModel

_ITEM_THREADS = 32
_TIMEOUT = 60.0
#: The published numbers of DINOv2's image processor.
_RULES: dict[str, Any] = {
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}

#: The embedding keys of some URLs, in order.
Encode = Callable[[Sequence[str]], list[str]]


class Steps:
    """The steps from a URL to an embedding. Safe to use from several threads."""

    def __init__(self, model: DeviceModel) -> None:
        self._model = model
        self._device = threading.Lock()
        self._local = threading.local()
        self._processor: Any = BitImageProcessorPil(**_RULES)

    def download(self, url: str) -> bytes:
        """The file behind a URL, over a connection that this thread keeps."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
        answer = self._local.session.get(url, timeout=_TIMEOUT)
        answer.raise_for_status()
        return bytes(answer.content)

    def forward(self, files: Sequence[bytes]) -> list[str]:
        """Decode, preprocess and encode files as one batch. Returns a key for each."""
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
        pixels = self._processor(images, return_tensors="pt").pixel_values
        with self._device:
            time.sleep(self._model.seconds(len(pixels)))
        return [hashlib.sha256(data).hexdigest() for data in files]


def serial(steps: Steps) -> Encode:
    """All work of a request before that of the next one begins."""
    turn = threading.Lock()

    def encode(urls: Sequence[str]) -> list[str]:
        with turn:
            return steps.forward([steps.download(url) for url in urls])

    return encode


def threaded(steps: Steps) -> Encode:
    """Every item in a thread of its own, and alone on the device."""
    items = ThreadPoolExecutor(_ITEM_THREADS)

    def one(url: str) -> str:
        return steps.forward([steps.download(url)])[0]

    return lambda urls: list(items.map(one, urls))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def _handler(encode: Encode) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body in one packet

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["items"]
            keys = encode([item["url"] for item in asked])
            items = [
                {"index": index, "type": "image", "state": "done", "cached": False, "embedding": {"key": key}}
                for index, key in enumerate(keys)
            ]
            body = json.dumps({"state": "done", "items": items}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler


KINDS = {"serial": serial, "threaded": threaded}


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--batch-ms", type=float, default=0.0)
    parser.add_argument("--item-ms", type=float, default=0.0)
    options = parser.parse_args()
    model = DeviceModel(options.batch_ms, options.item_ms)
    server = _Server(("127.0.0.1", 0), _handler(KINDS[options.kind](Steps(model))))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
