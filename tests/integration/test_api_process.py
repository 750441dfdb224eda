"""The API as its own process, as the stack starts it: settings from the environment, Celery as publisher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from epd.settings import Settings
from epd.store.open import open_store
from tests.api_worker_double import announce

CONFIG = """
default_model = "demo"
[encoders.eye]
family = "dinov2"
path = "eye"
[models.demo]
image = "eye"
"""
ITEM = {"type": "image", "url": "http://media.test/cat.png"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def api(tmp_path: Path, real_server_url: str) -> Iterator[str]:
    (tmp_path / "epd.toml").write_text(CONFIG)
    values = {
        "EPD_CONFIG": str(tmp_path / "epd.toml"),
        "EPD_BROKER_URL": f"{real_server_url}/10",
        "EPD_STORE_URL": f"{real_server_url}/11",
        "EPD_BLOB_DIR": str(tmp_path / "blobs"),
        "EPD_EMBEDDING_DIR": str(tmp_path / "embeddings"),
        "EPD_MAX_QUEUE_ITEMS": "8",
    }
    announce(open_store(Settings(store_url=values["EPD_STORE_URL"])))
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EPD_")} | values
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(url, process, tmp_path / "log")
            yield url
        finally:
            process.terminate()
            process.wait(10)
    assert "Traceback" not in (tmp_path / "log").read_text()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            httpx.get(f"{url}/healthz", timeout=1)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail(log.read_text())


def test_work_goes_to_the_broker_and_its_depth_bounds_admission(api: str) -> None:
    first = httpx.post(f"{api}/v1/encode", json={"items": [ITEM] * 8, "wait": 0}, timeout=30)
    assert (first.status_code, first.json()["state"]) == (202, "queued"), first.text
    end = time.monotonic() + 10
    while 'epd_queue_messages{queue="fetch"} 2.0' not in httpx.get(f"{api}/metrics").text:
        assert time.monotonic() < end
        time.sleep(0.1)
    refused = httpx.post(f"{api}/v1/encode", json={"items": [ITEM], "wait": 0}, timeout=30)
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert httpx.delete(f"{api}{first.headers['Location']}").json()["state"] == "cancelled"


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [("EPD_MAX_WIAT", "1", "EPD_MAX_WIAT"), ("EPD_CONFIG", "/nope.toml", "/nope.toml")],
)
def test_bad_settings_end_it_at_start(name: str, value: str, named: str) -> None:
    argv = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", str(free_port())]
    ended = subprocess.run(argv, env=os.environ | {name: value}, capture_output=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert named in ended.stderr.decode()
