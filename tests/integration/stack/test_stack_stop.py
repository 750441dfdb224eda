"""A stack that is stopped under load ends within ten seconds; one that starts on its data ends the work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from test_stack_at_once import some_jpeg
from test_stack_kill import done, unacked, wait_until

from epd.client import Client
from epd.contracts.job import State
from epd.stack.parts import StackOptions
from epd.stack.stack import Stack

ITEMS = 48
STOP_LIMIT_S = 10.0
CONFIG = """
default_model = "slow"
[encoders.slow]
family = "dinov2"
path = "{folder}/slow"
dtype = "float32"
[models.slow]
image = "slow"
"""


class Images(BaseHTTPRequestHandler):
    """``/17`` is image number 20 017."""

    def do_GET(self) -> None:
        data = some_jpeg(20_000 + int(self.path.strip("/")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def photo_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Images)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.timeout(300)
def test_a_stack_stops_under_load_and_its_work_is_ended_by_the_next(
    tmp_path: Path, checkpoints: Path
) -> None:
    config = tmp_path / "epd.toml"
    config.write_text(CONFIG.format(folder=checkpoints))
    options = StackOptions(
        config=config,
        data_dir=tmp_path,
        downloads=4,
        split=True,
        overrides={"EPD_FETCH_ALLOW_HOSTS": "127.0.0.1", "EPD_TORCH_THREADS": "1"},
    )
    with photo_server() as url:
        with Stack(options) as stack, Client(stack.api_url) as client:
            stack.wait_ready()
            items = [{"type": "image", "url": f"{url}/{number}"} for number in range(ITEMS)]
            job_id = client.submit(items, model="slow").job_id
            wait_until(lambda: done(client.job(job_id)) > 0 and unacked(client) > 0, "a batch under way")
            assert done(client.job(job_id)) < ITEMS, "the encoder is too fast for this test"
            start = time.monotonic()
            stack.stop()
            assert time.monotonic() - start < STOP_LIMIT_S
            assert not stack.media_dir.exists()
        with Stack(options) as stack, Client(stack.api_url) as client:
            stack.wait_ready()
            final = client.wait(job_id, 120)
            assert final.state is State.DONE, [item.error for item in final.items if item.error]
            assert len({item.embedding.key for item in final.items if item.embedding}) == ITEMS
            wait_until(lambda: unacked(client) == 0, "all acked")
