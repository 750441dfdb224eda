"""A blob directory that holds two images, and a dozen to decode: it never fills, and all come through."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_pipeline_zombies import end

from epd.contracts.job import State
from epd.contracts.media import Modality
from epd.store.files.ledger import FolderLedger
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line, Site, png, served
from tests.integration.transport_kit import wait_until

LIMIT = 16 << 20
COUNT = 12
SIZE = (1600, 1200)  # 5.8 MB each when decoded: two fit


@pytest.fixture
def site() -> Iterator[Site]:
    with served() as server:
        yield server


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with opened(Line, tmp_path) as made:
        made.start_both(fetch=4, decode=2, EPD_BLOB_BYTES=str(LIMIT))
        yield made


class Watch(threading.Thread):
    """Measures the folder all the time, under the ledger's lock: nothing is deleted while it reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.over = threading.Event()
        self._folder = folder
        self._ledger = FolderLedger(folder, LIMIT)

    def run(self) -> None:
        while not self.over.wait(0.002):
            with suppress(FileNotFoundError), self._ledger.locked():
                self.most = max(self.most, sum(size_of(path) for path in self._folder.glob("[!.]*")))


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_more_than_fits_comes_through_a_small_directory(line: Line, site: Site) -> None:
    for number in range(COUNT):
        site.pages[f"/{number}.png"] = png((number, 100, 200), SIZE)
    watch = Watch(line.settings.blob_dir)
    watch.start()
    job = line.submit(*[(Modality.IMAGE, f"{site.url}/{number}.png") for number in range(COUNT)], seconds=100)
    ended: set[int] = set()
    deadline = time.monotonic() + 90
    while len(ended) < COUNT:
        assert time.monotonic() < deadline, f"{len(ended)} of {COUNT}"
        for message in line.encodes(job):
            if message.item.index not in ended:
                end(line, message)
                ended.add(message.item.index)
        time.sleep(0.05)
    watch.over.set()
    watch.join(5)
    assert line.view(job).state is State.DONE
    assert 2 * SIZE[0] * SIZE[1] * 3 <= watch.most <= LIMIT
    wait_until(lambda: list(line.settings.blob_dir.glob("[!.]*")) == [], within=10, what="all freed")
