"""A request to stop arrives whatever the main thread is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from epd.cli.up import StopRequest

#: Signals come all the time, and waits begin and end all the time. With a ``threading.Event`` in its place
#: this stands still after a few hundred of them.
FLOODED = """
import os, signal, threading
from epd.cli.up import StopRequest

stop = StopRequest()
stop.on(signal.SIGUSR1)
flooding = threading.Thread(target=lambda: [os.kill(os.getpid(), signal.SIGUSR1) for _ in range(20_000)])
flooding.start()
while flooding.is_alive():
    stop.wait(0.00001)
assert stop.wait(60) and stop.is_asked()
"""


@pytest.mark.timeout(60)
def test_signals_in_quick_succession_are_all_handled() -> None:
    subprocess.run([sys.executable, "-c", FLOODED], check=True, timeout=40)


def test_a_signal_sets_the_request_for_good() -> None:
    stop = StopRequest()
    before = signal.getsignal(signal.SIGUSR1)
    try:
        stop.on(signal.SIGUSR1)
        assert not stop.wait(0)
        signal.raise_signal(signal.SIGUSR1)
        assert stop.wait(0)
        assert stop.wait(0)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_more_requests_than_a_pipe_holds_are_one_request() -> None:
    stop = StopRequest()
    for _ in range(70_000):
        stop.ask()
    assert stop.wait(0)


def test_a_signal_ends_a_wait_that_has_begun() -> None:
    stop = StopRequest()
    before = signal.getsignal(signal.SIGUSR1)
    try:
        stop.on(signal.SIGUSR1)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert stop.wait(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
