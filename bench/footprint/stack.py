"""A traced stack of any checkout, and one request at a time through it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_server

from bench.images import thumbnails
from epd.settings import child_environment

_READY_LIMIT = 300.0
_STOP_LIMIT = 30.0
#: A window closes when no process has shown a new call path for this long, in seconds.
_SETTLED = 2.5
_SETTLE_LIMIT = 60.0
#: One thread and one child, so that each request meets the same, warm process.
_OPTIONS = ("--no-flower", "--fetch-threads", "1", "--decode-processes", "1", "--devices", "cpu")


class TracedStack:
    """A running stack. ``folder`` holds the probe, the images that it fetches, and its data."""

    def __init__(self, tree: Path, folder: Path, images_url: str) -> None:
        self._folder = folder
        self._images_url = images_url
        self._port = _free_port()
        self._output = folder / "output"
        self._calls = folder / "probe"
        _lay_out_probe(self._calls, tree)
        python = tree / ".venv/bin/python"
        command = [str(python if python.exists() else sys.executable), "-m", "epd.cli.main", "up", *_OPTIONS]
        settings = {
            "EPD_API_PORT": str(self._port),
            "EPD_FETCH_ALLOW_HOSTS": "127.0.0.1",
            "EPD_URL_TTL": "3600",
            "PYTHONPATH": str(self._calls),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(folder / "data")],
                cwd=tree, env=child_environment(settings), stdout=output, stderr=output,
            )  # fmt: skip

    def wait_ready(self) -> None:
        """Wait until the API says that every worker is ready; raises ``RuntimeError`` if it never does."""
        end = time.monotonic() + _READY_LIMIT
        while self._process.poll() is None and time.monotonic() < end:
            with suppress(OSError), urllib.request.urlopen(f"{self._api}/readyz", timeout=5):
                return
            time.sleep(0.5)
        raise RuntimeError(f"the stack is not ready:\n{self._output.read_text(errors='replace')[-2000:]}")

    def encode(self, image: str, *, cached: bool) -> None:
        """One request for one image by URL, until its answer.

        Raises:
            RuntimeError: the answer is not 200, or did not come from where ``cached`` says.
        """
        body = {"items": [{"type": "image", "url": f"{self._images_url}/{image}"}], "wait": 120}
        request = urllib.request.Request(
            f"{self._api}/v1/encode", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=180) as answer:
            job = json.load(answer)
        item = job["items"][0]
        if answer.status != 200 or item["state"] != "done" or item["cached"] is not cached:
            raise RuntimeError(f"not the expected answer: {answer.status} {job}")

    @contextmanager
    def window(self, number: int, least: float = 0.0) -> Iterator[None]:
        """Record what runs from here until ``least`` seconds are over and nothing new runs any more.

        ``number`` is 1 to 255 and tells the windows apart in ``calls``.
        """
        start = time.monotonic()
        self._set_window(number)
        yield
        size, changed = -1, time.monotonic()
        while (now := time.monotonic()) < start + least or now < changed + _SETTLED:
            if now > start + least + _SETTLE_LIMIT:
                raise RuntimeError(f"something new still runs {_SETTLE_LIMIT:.0f} s after the request")
            if (new_size := self._size()) != size:
                size, changed = new_size, now
            time.sleep(0.05)
        self._set_window(0)

    def calls(self) -> dict[str, set[tuple[str, ...]]]:
        """What has run so far, by process command: records of a window's number and a call path."""
        found: dict[str, set[tuple[str, ...]]] = {}
        for file in self._calls.glob("*.calls"):
            command, *lines = file.read_text("utf-8").splitlines()
            found.setdefault(command, set()).update(tuple(line.split("\t")) for line in lines)
        return found

    def stop(self) -> None:
        """End the stack as Ctrl-C does."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()

    @property
    def _api(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _set_window(self, number: int) -> None:
        with (self._calls / "window").open("r+b") as file:
            file.write(bytes([number]))

    def _size(self) -> int:
        return sum(file.stat().st_size for file in self._calls.glob("*.calls"))


def _lay_out_probe(folder: Path, tree: Path) -> None:
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("probe.py"), folder / "sitecustomize.py")
    (folder / "tree").write_text(str(tree), encoding="utf-8")
    (folder / "window").write_bytes(b"\0")


def _free_port() -> int:
    with create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served_images(folder: Path, count: int) -> Iterator[str]:
    """A loopback server of so many different JPEGs, ``/0.jpg`` first; yields its URL."""
    folder.mkdir()
    for number, data in enumerate(thumbnails(count, seed=0)):
        (folder / f"{number}.jpg").write_bytes(data)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
