"""The wish to stop: it comes through whatever the main thread is at."""

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
def test_no_signal_stops_the_process_from_hearing_the_next() -> None:
    subprocess.run([sys.executable, "-c", FLOODED], check=True, timeout=40)


def test_it_is_not_asked_before_a_signal_comes_and_stays_asked() -> None:
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


def test_more_wishes_than_a_pipe_holds_are_one_wish() -> None:
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
