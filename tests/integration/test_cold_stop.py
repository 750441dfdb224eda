"""SIGQUIT at the worst moments of a worker's main thread: the worker ends all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from epd.contracts.media import Modality
from tasks.worker.shutdown import COLD_STOP
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line, served
from tests.integration.transport_kit import wait_until

_ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_a_worker_in_the_middle_of_its_work_ends_and_gives_its_messages_back(tmp_path: Path) -> None:
    with opened(Line, tmp_path) as line, served() as site:
        site.delay = 20.0
        worker = line.start("-Q", "fetch,decode", "-n", "media@%h", EPD_DECODE_PROCESSES="1")
        wait_until(lambda: line.alive("fetch", "decode"), within=40, what="worker up")
        line.announce()
        children = psutil.Process(worker.pid).children(recursive=True)
        for number in range(12):
            line.submit((Modality.IMAGE, f"{site.url}/{number}.png"))
        client = line.broker.client
        wait_until(lambda: client.llen("fetch") == 0, within=10, what="messages taken")
        worker.send_signal(signal.SIGQUIT)
        assert worker.wait(30) == COLD_STOP
        # They stay in the session of the worker until another worker sees that it is dead.
        held = sum(client.hlen(key) for key in client.keys("epd:unacked:*"))
        waiting = sum(client.llen(key) for key in ("fetch", "epd:again:fetch"))
        assert held + waiting == 12
        wait_until(lambda: not any(map(_runs, children)), within=10, what="children gone")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
