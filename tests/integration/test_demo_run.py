"""``python -m demo`` as a user runs it: whole, and stopped half-way."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
WHOLE, STOP = 240.0, 30.0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "demo"], cwd=ROOT, stdout=out, stderr=out)
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(STOP)


@pytest.mark.timeout(300)
def test_the_demo_keeps_its_promises(demo: subprocess.Popen[bytes], tmp_path: Path) -> None:
    demo.wait(WHOLE)
    text = (tmp_path / "out").read_text()
    assert demo.returncode == 0, text
    for promise in (
        "Nearest to query.jpg: cat.jpg",
        "John Dashwood",
        "All cached",
        "no process of the stack",
    ):
        assert promise in text


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_demo_takes_its_stack_along(
    demo: subprocess.Popen[bytes], number: signal.Signals, code: int
) -> None:
    children = _children(demo, at_least=4)
    demo.send_signal(number)
    assert demo.wait(STOP) == code
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list(Path("/dev/shm").glob(f"epd-{demo.pid}-*")) == []


def _children(demo: subprocess.Popen[bytes], *, at_least: int) -> list[psutil.Process]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        children = psutil.Process(demo.pid).children(recursive=True)
        if len(children) >= at_least:
            return children
        time.sleep(0.1)
    raise AssertionError("the demo started no stack")
