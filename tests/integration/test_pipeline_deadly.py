"""Decodes that hang or kill their process end as failures of their own item; the others are served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epd.contracts.job import ErrorInfo
from epd.contracts.media import ItemOptions, Modality
from tasks.flow.tracks import DECODE_SLACK
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line, Site, png, served
from tests.integration.transport_kit import wait_until

#: What the item asks for with ``max_frames``: a hang, a crash, and nothing special.
HANG, CRASH, HARMLESS = 9, 11, 5

DEADLY = """
import os, time
import workers.decode.decode
real = workers.decode.decode.decode

def decode(path, *, options, **others):
    if options.max_frames == 11:
        os.kill(os.getpid(), 9)
    while options.max_frames == 9:
        time.sleep(60)
    return real(path, options=options, **others)

workers.decode.decode.decode = decode
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with served() as server:
        server.pages |= {f"/{place}.png": png((255, 0, place)) for place in range(16)}
        yield server


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """One fetch worker, and one decode worker with a single child that some items are deadly for."""
    folder: Path = tmp_path_factory.mktemp("deadly")
    (folder / "sitecustomize.py").write_text(DEADLY)
    with opened(Line, folder) as made:
        made.start_both(fetch=2, decode=1, EPD_DECODE_TIMEOUT="1")
        yield made


def submit(line: Line, site: Site, place: int, frames: int) -> str:
    options = ItemOptions(max_frames=frames)
    return line.submit((Modality.IMAGE, f"{site.url}/{place}.png"), options=options)


def failure(line: Line, job: str, *, within: float) -> ErrorInfo:
    wait_until(lambda: line.view(job).parts["0.image"].error, within=within, what="failure")
    error = line.view(job).parts["0.image"].error
    assert error is not None
    return error


def test_hung_decodes_end_and_the_next_item_is_served(line: Line, site: Site) -> None:
    hung = submit(line, site, 1, HANG)
    after = submit(line, site, 3, HARMLESS)
    error = failure(line, hung, within=1 + DECODE_SLACK + 10)
    assert (error.code, error.retryable) == ("decode_timeout", True)
    assert "longer than its limit" in error.message
    line.wait_encodes(after, 1, within=15)
    wait_until(lambda: not list(line.settings.blob_dir.glob("s-*")), within=5, what="bytes freed")


def test_item_that_kills_its_process_fails_alone(line: Line, site: Site) -> None:
    poison = submit(line, site, 4, CRASH)
    mates = [submit(line, site, place, HARMLESS) for place in (5, 6)]
    assert failure(line, poison, within=40).code == "worker_crashed"
    for mate in mates:
        line.wait_encodes(mate, 1, within=20)
