"""64 requests at once, three API processes, two fetch workers: one download, one decode, one encode."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_stack_at_once import some_jpeg
from test_stack_kill import wait_until

from epd.client import Client
from epd.settings import child_environment
from epd.stack.parts import StackOptions, free_port
from epd.stack.stack import Stack
from tests.paths import MEDIA
from tests.unit.encoders.tiny_checkpoints import tiny_folder

REQUESTS = 64
_CONFIG = """
default_model = "tiny"
[encoders.eye]
family = "dinov2"
path = "{made}/tiny"
[encoders.ear]
family = "whisper"
path = "{ear}"
[models.tiny]
image = "eye"
video = "eye"
audio = "ear"
"""


class Site(ThreadingHTTPServer):
    """Pages without validators, each sent when the gate is open; counts what it was asked for."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.pages: dict[str, bytes] = {}
        self.hits: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Pages(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.hits[self.path] += 1
        self.server.gate.wait(60)
        body = self.server.pages.get(self.path, b"")
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Fleet:
    """A stack with two more API processes and one more fetch worker."""

    def __init__(self, stack: Stack, site: Site, urls: list[str]) -> None:
        self.stack, self.site, self.urls = stack, site, urls
        self.client = Client(stack.api_url)

    def at_once(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One request an item, all at once, over all API processes in turn; the answers' items.

        The site's gate opens only when every request has been accepted.
        """
        self.site.gate.clear()
        jobs: list[tuple[str, str]] = []

        def submit(number: int) -> tuple[str, str]:
            url = self.urls[number % len(self.urls)]
            answer = httpx.post(f"{url}/v1/encode", json={"items": [items[number]], "wait": 0}, timeout=60)
            assert answer.status_code in (200, 202), answer.text
            return url, answer.json()["job_id"]

        def result(job: tuple[str, str]) -> dict[str, Any]:
            found = httpx.get(f"{job[0]}/v1/jobs/{job[1]}", params={"wait": 60}, timeout=90).json()
            assert isinstance(found["items"][0], dict)
            return dict(found["items"][0])

        with ThreadPoolExecutor(16) as pool:
            jobs = list(pool.map(submit, range(len(items))))
            self.site.gate.set()
            return list(pool.map(result, jobs))

    def counted(self) -> Counter[str]:
        """Counters of all workers, encoders added up."""
        total: Counter[str] = Counter()
        for worker in self.client.status().workers:
            for name, value in worker.counters.items():
                total[name.partition("/")[0]] += int(value)
        return total

    def difference(self, before: Counter[str], expected: dict[str, int]) -> None:
        """Heartbeats carry the counters, once a second."""

        def as_expected() -> bool:
            now = self.counted()
            return {name: now[name] - before[name] for name in expected} == expected

        wait_until(as_expected, f"{expected}, now {self.counted() - before}", 15)


@contextmanager
def served() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield site
    site.gate.set()
    site.shutdown()
    site.server_close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("single-flight")
    config = folder / "epd.toml"
    config.write_text(_CONFIG.format(made=checkpoints, ear=tiny_folder("whisper", folder)), encoding="utf-8")
    own = {"EPD_FETCH_ALLOW_HOSTS": "127.0.0.1", "EPD_TORCH_THREADS": "1", "EPD_FETCH_RETRIES": "0"}
    own |= {"EPD_FETCH_READ_TIMEOUT": "60", "EPD_FETCH_TOTAL_TIMEOUT": "100"}
    options = StackOptions(config=config, data_dir=folder, downloads=4, split=True, overrides=own)
    with served() as site, Stack(options) as stack:
        stack.wait_ready()
        ports = [free_port(), free_port()]
        commands = [
            [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", str(port)]
            for port in ports
        ]
        celery = [sys.executable, "-m", "celery", "-A", "tasks", "worker"]
        commands.append([*celery, "-Q", "fetch", "-c", "4", "-n", "fetch2@%h"])
        environment = child_environment(stack.settings)
        with (folder / "more.log").open("wb") as log:
            more = [
                subprocess.Popen(command, env=environment, stdout=log, stderr=log) for command in commands
            ]
        fleet = Fleet(stack, site, [stack.api_url, *(f"http://127.0.0.1:{port}" for port in ports)])
        try:
            for url in fleet.urls:
                wait_until(lambda url=url: answers(f"{url}/readyz"), f"{url} is up")
            wait_until(lambda: "fetch2" in str(fleet.client.status().workers), "fetch2 is up")
            yield fleet
        finally:
            fleet.client.close()
            for process in more:
                process.terminate()
            for process in more:
                process.wait(20)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def test_one_new_url(fleet: Fleet) -> None:
    fleet.site.pages["/new.jpg"] = some_jpeg(50_001)
    before = fleet.counted()
    items = fleet.at_once([{"type": "image", "url": fleet.site.url("/new.jpg")}] * REQUESTS)
    assert {item["state"] for item in items} == {"done"}
    assert len({item["embedding"]["key"] for item in items}) == 1
    assert fleet.site.hits["/new.jpg"] == 1
    fleet.difference(before, {"downloads": 1, "decode_items": 1, "encode_items": 1})


def test_the_same_bytes_from_everywhere(fleet: Fleet) -> None:
    data = some_jpeg(50_002)
    fleet.site.pages["/a.jpg"] = fleet.site.pages["/b.jpg"] = data
    before = fleet.counted()
    sources: list[dict[str, Any]] = [
        {"url": fleet.site.url("/a.jpg")},
        {"url": fleet.site.url("/b.jpg")},
        {"data": base64.b64encode(data).decode()},
        {"media_id": httpx.post(f"{fleet.stack.api_url}/v1/media", content=data).json()["media_id"]},
    ]
    items = fleet.at_once([{"type": "image", **sources[number % 4]} for number in range(REQUESTS)])
    assert {item["state"] for item in items} == {"done"}
    assert len({item["embedding"]["key"] for item in items}) == 1
    assert (fleet.site.hits["/a.jpg"], fleet.site.hits["/b.jpg"]) == (1, 1)
    fleet.difference(before, {"downloads": 2, "decode_items": 1, "encode_items": 1})


def test_one_new_video_with_its_audio(fleet: Fleet) -> None:
    fleet.site.pages["/new.mp4"] = (MEDIA / "launch.mp4").read_bytes()
    before = fleet.counted()
    items = fleet.at_once([{"type": "video", "url": fleet.site.url("/new.mp4")}] * REQUESTS)
    assert {item["state"] for item in items} == {"done"}
    assert {len(item["tracks"]) for item in items} == {1}
    assert fleet.site.hits["/new.mp4"] == 1
    fleet.difference(before, {"downloads": 1, "decode_items": 2, "encode_items": 2})


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [("/gone.jpg", b"", "source_rejected"), ("/text.jpg", b"no picture", "unsupported_media")],
)
def test_an_error_is_shared(fleet: Fleet, path: str, body: bytes, code: str) -> None:
    fleet.site.pages[path] = body
    items = fleet.at_once([{"type": "image", "url": fleet.site.url(path)}] * REQUESTS)
    assert {item["error"]["code"] for item in items} == {code}
    assert fleet.site.hits[path] == 1


def test_a_leader_that_is_killed_is_run_again(fleet: Fleet) -> None:
    """Whichever worker leads: both are killed while the server holds its answer back."""
    fleet.site.pages["/kill.jpg"] = some_jpeg(50_003)
    item = {"type": "image", "url": fleet.site.url("/kill.jpg")}

    def kill_both() -> bool:
        if fleet.site.hits["/kill.jpg"] == 0:
            return False
        fleet.stack.kill("fetch")
        fleet.site.gate.set()
        return True

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(held_until, fleet, item, kill_both)
        items = done.result(100)
    assert {found["state"] for found in items} == {"done"}
    assert fleet.site.hits["/kill.jpg"] <= 2


def held_until(fleet: Fleet, item: dict[str, Any], act: Callable[[], bool]) -> list[dict[str, Any]]:
    thread = threading.Thread(target=lambda: wait_until(act, "a download to be killed in"), daemon=True)
    thread.start()
    return fleet.at_once([item] * 8)
