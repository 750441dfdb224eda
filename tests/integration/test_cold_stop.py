"""SIGQUIT at the worst moments of a worker's main thread: the worker ends all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks.worker.shutdown import COLD_STOP

_PLAYER = Path(__file__).with_name("cold_stop_player.py")
_ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("place", ["within an ack", "between header and body", "between turns"])
def test_sigquit_ends_the_pool_wherever_it_comes(place: str) -> None:
    played = subprocess.run(
        [sys.executable, _PLAYER, place], env=os.environ | {"PYTHONPATH": str(_ROOT)}, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr[-3000:]


_DEAF = """
import subprocess, sys, time
from types import SimpleNamespace
from tasks.worker.shutdown import stop_cold_between_ticks
stop_cold_between_ticks(SimpleNamespace(hub=SimpleNamespace(on_tick=set())), limit=0.5)
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(30)
def test_a_worker_whose_loop_does_not_turn_ends_with_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _DEAF], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        worker.send_signal(signal.SIGQUIT)
        assert worker.wait(20) == COLD_STOP
    end = time.monotonic() + 5
    while psutil.pid_exists(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(child)
