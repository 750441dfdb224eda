"""``python -m bench.peers.servers.mosec_server --port P --layout WORKERS BATCH``: a pipeline of two stages.

The first stage downloads, decodes and runs the processor, one request at a time in each of its workers. The
second one is the model, and batches requests.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from typing import Any

from mosec import Server, Worker

from bench.peers.servers.encoder import Downloads, Pixels, make_encoder, read_options

#: Downloads of a worker at once: the images of a request.
_DOWNLOADS = 4
_MAX_WAIT_MS = 10
_TIMEOUT_SECONDS = 300


class Preprocess(Worker):
    """The sources of a request to their pixels."""

    def __init__(self) -> None:
        super().__init__()
        self._downloads = Downloads(read_options(), _DOWNLOADS)

    def forward(self, data: dict[str, Any]) -> list[Pixels]:
        """The pixels of a request."""
        sources = data.get("urls") or [base64.b64decode(text) for text in data["files"]]
        return self._downloads.prepare(sources)


class Inference(Worker):
    """The pixels of several requests to their rows."""

    def __init__(self) -> None:
        super().__init__()
        options = read_options()
        self._encoder = make_encoder(options, options.threads)

    def forward(self, data: Sequence[list[Pixels]]) -> list[bytes]:
        """The rows of each request."""
        rows = iter(self._encoder.encode(list(itertools.chain.from_iterable(data))))
        return [b"".join(itertools.islice(rows, len(pixels))) for pixels in data]

    def serialize(self, data: bytes) -> bytes:
        """The rows as they are, which costs least."""
        return data


def main() -> None:
    """Serve until a signal."""
    workers, batch = read_options().layout
    server = Server()
    server.append_worker(Preprocess, num=workers, timeout=_TIMEOUT_SECONDS)
    server.append_worker(
        Inference, num=1, max_batch_size=batch, max_wait_time=_MAX_WAIT_MS, timeout=_TIMEOUT_SECONDS
    )
    server.run()


if __name__ == "__main__":
    main()
