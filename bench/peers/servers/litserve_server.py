"""``python -m bench.peers.servers.litserve_server --port P --layout WORKERS BATCH``: a LitAPI that batches.

``decode_request`` runs once for each request of a batch, one after the other, so it only reads the sources:
their downloads run in ``predict``, for all of the batch at once.
"""

# litserve gives the annotations of the hooks to FastAPI as they are, so they must not be strings.
import base64
import itertools
from collections.abc import Sequence
from typing import Any

import litserve
from fastapi import Response

from bench.peers.servers.encoder import Downloads, Options, Source, make_encoder, read_options

_DOWNLOADS = 32
_BATCH_TIMEOUT = 0.01
_TIMEOUT = 300


class EncoderApi(litserve.LitAPI):
    """One request holds several images; a batch holds several requests."""

    def __init__(self, options: Options) -> None:
        self._workers, batch = options.layout
        super().__init__(max_batch_size=batch, batch_timeout=_BATCH_TIMEOUT, api_path="/encode")
        self._options = options

    def setup(self, device: str) -> None:
        """Load what a worker needs, inside it."""
        self._downloads = Downloads(self._options, _DOWNLOADS)
        self._encoder = make_encoder(self._options, max(1, self._options.threads // self._workers))

    def decode_request(self, request: dict[str, Any]) -> list[Source]:
        """The sources of a request."""
        if "urls" in request:
            return list(request["urls"])
        return [base64.b64decode(text) for text in request["files"]]

    def batch(self, inputs: Sequence[list[Source]]) -> Sequence[list[Source]]:
        """Requests differ in their number of images, so they are not stacked."""
        return inputs

    def predict(self, x: Sequence[list[Source]]) -> list[bytes]:
        """The rows of each request."""
        pixels = self._downloads.prepare(list(itertools.chain.from_iterable(x)))
        rows = iter(self._encoder.encode(pixels))
        return [b"".join(itertools.islice(rows, len(sources))) for sources in x]

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        """They are separate already."""
        return output

    def encode_response(self, output: bytes) -> Response:
        """The rows as they are, which costs least."""
        return Response(output, media_type="application/octet-stream")


def main() -> None:
    """Serve until a signal."""
    options = read_options()
    server = litserve.LitServer(
        EncoderApi(options),
        accelerator="cpu",
        devices=1,
        workers_per_device=options.layout[0],
        timeout=_TIMEOUT,
        fast_queue=True,
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
    )


if __name__ == "__main__":
    main()
