"""Inline images, three times what the blob directory takes, through the API and real CPU workers."""

from __future__ import annotations

import base64
import io
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from test_pipeline_zombies import end

from api.app import create_app
from api.encode.capacity import QueueDepth
from epd.config import load_config
from epd.contracts.job import FINAL_STATES, State
from epd.contracts.messages import FetchMessage
from epd.store.open import open_store
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line
from tests.integration.transport_kit import wait_until

LIMIT = 4 << 20
COUNT = 40
FETCH = ("-Q", "fetch", "-c", "4")


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with opened(Line, tmp_path) as made:
        made.environment["EPD_BLOB_BYTES"] = str(LIMIT)
        made.start_both(fetch=4, decode=2)
        yield made


class Ender(threading.Thread):
    """Stands for the GPU worker: finishes what reaches the encode queue, a moment after it came."""

    def __init__(self, line: Line, jobs: list[str]) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._line, self._jobs, self._ended = line, jobs, set[str]()

    def run(self) -> None:
        while not self.over.wait(0.1):
            for job in [job for job in self._jobs if job not in self._ended]:
                for message in self._line.encodes(job)[:1]:
                    end(self._line, message)
                    self._ended.add(job)


def image(number: int) -> str:
    """A PNG of noise, about 300 kB, that no other number gives; base64."""
    pixels = np.random.default_rng(number).integers(0, 256, (320, 320, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def posted(client: TestClient, number: int) -> str:
    """The job of one image; no room is tried again, as ``Retry-After`` asks for."""
    body = {"items": [{"type": "image", "data": image(number)}], "wait": 0, "deadline": 120}
    give_up = time.monotonic() + 30
    while True:
        answer = client.post("/v1/encode", json=body)
        if answer.status_code == 202:
            return str(answer.json()["job_id"])
        assert (answer.status_code, answer.json()["code"]) == (503, "blob_space_full"), answer.text
        assert time.monotonic() < give_up, f"no room for picture {number}"
        time.sleep(0.1)


def test_inline_images_leave_the_directory_with_their_jobs(line: Line, tmp_path: Path) -> None:
    settings = line.settings.model_copy(update={"blob_bytes": LIMIT})

    def publish(messages: Sequence[FetchMessage]) -> None:
        line.send("fetch", messages)

    app = create_app(
        settings,
        config=load_config(tmp_path / "epd.toml"),
        store=open_store(settings),
        publisher=publish,
        depth=QueueDepth(dict),
    )
    jobs: list[str] = []
    ender = Ender(line, jobs)
    ender.start()
    try:
        with TestClient(app) as client:
            for number in range(COUNT):
                if number == COUNT // 2:  # what it had taken is fetched again, from bytes that must be there
                    os.killpg(line.processes[0].pid, 9)
                    line.start(*FETCH, "-n", "f2@%h")
                jobs.append(posted(client, number))

            def is_over() -> bool:
                views = [line.view(job) for job in jobs]
                return all(part.state in FINAL_STATES for view in views for part in view.parts.values())

            wait_until(is_over, within=90, what="every job is final")
        assert {line.view(job).state for job in jobs} == {State.DONE}
        blobs = line.settings.blob_dir
        wait_until(lambda: list(blobs.glob("[!.]*")) == [], within=15, what="nothing is left")
        assert list((blobs / ".inline").iterdir()) == []
    finally:
        ender.over.set()
        ender.join(10)
