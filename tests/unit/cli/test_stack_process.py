"""Supervised children: restarts, the exit status that refuses them, and the wait for a ready stack."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epd.stack.parts import StackOptions
from epd.stack.process import Child, Spec
from epd.stack.stack import Stack, StackFailed

_ENDS = "import sys; print('loading'); print('gpu_worker: no such device'); print('bye'); sys.exit({status})"


def child_of(folder: Path, status: int) -> Child:
    command = [sys.executable, "-c", _ENDS.format(status=status)]
    return Child(Spec("gpu", command, stop_order=0), folder / "gpu.log", dict(os.environ))


def check_until(child: Child, met: Callable[[], bool], within: float) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end and not met():
        child.check()
        time.sleep(0.02)
    return met()


def test_a_child_that_cannot_start_is_left_down(tmp_path: Path) -> None:
    child = child_of(tmp_path, os.EX_CONFIG)
    child.start()
    assert check_until(child, lambda: child.cannot_start, within=20)
    assert not check_until(child, lambda: child.restarts > 0, within=1.0)
    assert child.last_log_line("gpu_worker: ") == "no such device"
    assert child.last_log_line("other: ") == "bye"


@pytest.mark.parametrize("status", [0, 1, 69, 70, 75])
def test_a_child_that_died_otherwise_is_restarted(tmp_path: Path, status: int) -> None:
    child = child_of(tmp_path, status)
    child.start()
    assert check_until(child, lambda: child.restarts > 0, within=20)
    assert not child.cannot_start
    child.wait(20)


def test_a_stack_ends_with_the_reason_of_the_part_that_cannot_start(tmp_path: Path) -> None:
    child = child_of(tmp_path, os.EX_CONFIG)
    child.start()
    assert child.wait(20)
    stack = Stack.__new__(Stack)  # its parts alone; a whole one is in tests/integration
    stack._children = {"gpu": child}
    with pytest.raises(StackFailed, match=r"^gpu cannot start: no such device \(log: .*gpu\.log\)$"):
        stack.raise_if_one_cannot_start()


CONFIG = 'default_model = "m"\n[encoders.e]\nfamily = "dinov2"\npath = "e"\n[models.m]\nimage = "e"\n'


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """One that was never started, with a fetch worker that was restarted ten times."""
    config = tmp_path / "epd.toml"
    config.write_text(CONFIG, "utf-8")
    made = Stack(StackOptions(config=config, data_dir=tmp_path / "data"))
    child = Child(Spec("fetch", ("true",), 1), tmp_path / "fetch.log", {}, restarts=10)
    monkeypatch.setattr(made, "_children", {"fetch": child})
    yield made
    made.stop()


def answering(stack: Stack, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], str]) -> None:
    monkeypatch.setattr(stack, "_not_ready", answer)


def test_earlier_restarts_do_not_end_the_wait(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["store: no answer", ""])
    answering(stack, monkeypatch, lambda: next(answers))
    stack.wait_ready(10)


def test_a_part_that_keeps_dying_ends_the_wait(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ready() -> str:
        stack._children["fetch"].restarts += 1
        return "no fetch worker"

    answering(stack, monkeypatch, not_ready)
    with pytest.raises(StackFailed, match="fetch keeps dying"):
        stack.wait_ready(10)


_ENDS_CLEANLY = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.5)
    pathlib.Path(sys.argv[1]).write_text("ended")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("started", flush=True)
time.sleep(60)
"""


def test_parts_end_by_themselves_when_the_stack_stops(stack: Stack, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    spec = Spec("fetch", (sys.executable, "-c", _ENDS_CLEANLY, str(ended)), stop_order=1)
    child = stack._children["fetch"] = Child(spec, tmp_path / "fetch.log", dict(os.environ))
    stack._supervisor = threading.Thread(target=stack._supervise, daemon=True)
    stack._supervisor.start()
    end = time.monotonic() + 20
    while "started" not in child.log_tail() and time.monotonic() < end:
        time.sleep(0.02)
    stack.stop()
    assert ended.read_text() == "ended"
    assert not stack._supervisor.is_alive()
