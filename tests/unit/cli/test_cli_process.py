"""A supervised child: restarted whatever it dies of, but for the status that says that it cannot start."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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
def test_a_child_that_died_otherwise_is_started_anew(tmp_path: Path, status: int) -> None:
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
