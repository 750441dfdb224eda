"""Children that decode for a worker: results, errors, deaths, time limits, and their parent's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from epd.contracts.errors import (
    BlobSpaceFull,
    CorruptMedia,
    DecodeTimeout,
    UnsupportedMedia,
    WorkerCrashed,
)
from epd.contracts.media import ItemOptions, Modality, RawImage
from tests.paths import ROOT
from workers.decode import child
from workers.decode.children import DecodeChildren
from workers.limits import DecodeLimits


@pytest.fixture(scope="module")
def shared() -> Iterator[DecodeChildren]:
    children = DecodeChildren(2)
    yield children
    children.close()


@pytest.fixture
def own() -> Iterator[DecodeChildren]:
    children = DecodeChildren(1, tries=3)
    yield children
    children.close()


def sample(folder: Path, colour: tuple[int, int, int] = (1, 2, 3)) -> Path:
    path = folder / f"{'-'.join(map(str, colour))}.png"
    Image.new("RGB", (8, 6), colour).save(path)
    return path


def decode(children: DecodeChildren, path: Path, *, timeout: float = 20.0, **limits: Any) -> RawImage:
    out = path.with_suffix(".raw")
    out.touch()
    raw = children.decode(
        path,
        modality=Modality.IMAGE,
        rules=None,
        options=ItemOptions(),
        limits=DecodeLimits(**limits),
        out=out,
        timeout=timeout,
    )
    assert isinstance(raw, RawImage)
    return raw


def until(condition: Callable[[], object], within: float = 20.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def pid_of(children: DecodeChildren) -> int:
    children.start()
    until(children.pids)
    return children.pids()[0]


def test_pixels_and_sizes_are_those_of_the_file(shared: DecodeChildren, tmp_path: Path) -> None:
    asked: list[int] = []
    raw = decode(shared, sample(tmp_path, (9, 8, 7)), hold=asked.append)
    assert (raw.height, raw.width) == (6, 8)
    pixels = np.fromfile(tmp_path / raw.blob.name, np.uint8).reshape(6, 8, 3)
    assert (pixels == (9, 8, 7)).all()
    assert asked == [6 * 8 * 3]


def test_many_threads_share_the_children(shared: DecodeChildren, tmp_path: Path) -> None:
    paths = [sample(tmp_path, (number, 0, 0)) for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda path: decode(shared, path), paths))
    for number, path in enumerate(paths):
        assert np.fromfile(path.with_suffix(".raw"), np.uint8)[0] == number
    assert len(shared.pids()) == 2


def test_errors_of_the_media_come_back_as_they_are(shared: DecodeChildren, tmp_path: Path) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes(sample(tmp_path).read_bytes()[:45])
    with pytest.raises(CorruptMedia):
        decode(shared, cut)
    page = tmp_path / "page.png"
    page.write_bytes(b"<html></html>")
    with pytest.raises(UnsupportedMedia):
        decode(shared, page)
    assert not page.with_suffix(".raw").exists()


def test_a_refusal_of_room_is_raised_to_the_caller(shared: DecodeChildren, tmp_path: Path) -> None:
    def refuse(nbytes: int) -> None:
        raise BlobSpaceFull(f"no room for {nbytes} bytes")

    with pytest.raises(BlobSpaceFull, match="144 bytes"):
        decode(shared, sample(tmp_path), hold=refuse)
    decode(shared, sample(tmp_path))


def test_a_child_that_dies_costs_one_try(own: DecodeChildren, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_once(_: int) -> None:
        if not killed:
            killed.extend(own.pids())
            os.kill(killed[0], signal.SIGKILL)

    raw = decode(own, sample(tmp_path), hold=kill_once)
    assert raw.width == 8
    assert own.pids() != killed


def test_an_item_that_ends_every_child_fails(own: DecodeChildren, tmp_path: Path) -> None:
    def kill(_: int) -> None:
        os.kill(own.pids()[0], signal.SIGKILL)

    with pytest.raises(WorkerCrashed, match="3 times"):
        decode(own, sample(tmp_path), hold=kill)
    decode(own, sample(tmp_path))


def test_a_child_that_died_while_idle_costs_no_try(tmp_path: Path) -> None:
    children = DecodeChildren(1, tries=1)
    decode(children, sample(tmp_path))
    first = psutil.Process(children.pids()[0])
    first.kill()
    until(lambda: not _runs(first))
    decode(children, sample(tmp_path))
    children.close()


def test_a_frozen_child_ends_at_the_limit(own: DecodeChildren, tmp_path: Path) -> None:
    decode(own, sample(tmp_path))

    def freeze(_: int) -> None:
        os.kill(own.pids()[0], signal.SIGSTOP)

    began = time.monotonic()
    with pytest.raises(DecodeTimeout):
        decode(own, sample(tmp_path), timeout=0.5, hold=freeze)
    assert time.monotonic() - began < 10
    decode(own, sample(tmp_path))


def test_a_worn_child_is_replaced(
    own: DecodeChildren, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "LIFE", 2)
    first = pid_of(own)
    for _ in range(3):
        decode(own, sample(tmp_path))
    assert own.pids() != [first]


def test_no_child_is_left_when_it_closes(tmp_path: Path) -> None:
    children = DecodeChildren(2)
    decode(children, sample(tmp_path))
    processes = [psutil.Process(pid) for pid in children.pids()]
    children.close()
    until(lambda: not any(process.is_running() for process in processes))


def test_children_get_no_settings(own: DecodeChildren, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_STORE_URL", "redis://:secret@store.test/1")
    assert "EPD_STORE_URL" not in psutil.Process(pid_of(own)).environ()


def test_children_end_with_their_parent(tmp_path: Path) -> None:
    script = (
        "import time; from workers.decode.children import DecodeChildren\n"
        "children = DecodeChildren(2); children.start()\n"
        "while len(children.pids()) < 2: time.sleep(0.01)\n"
        "print(*children.pids(), flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(processes) == 2
    parent.kill()
    parent.wait()
    until(lambda: not any(_runs(process) for process in processes))
    parent.stdout.close()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_call_with_no_free_child_ends_too(
    own: DecodeChildren, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.decode.children.START_SECONDS", 0.2)
    entered, leave = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        entered.set()
        leave.wait(20)

    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(decode, own, sample(tmp_path), hold=wait)
        assert entered.wait(20)
        with pytest.raises(DecodeTimeout, match="free"):
            decode(own, sample(tmp_path, (4, 4, 4)), timeout=0.2)
        leave.set()
        busy.result(20)
