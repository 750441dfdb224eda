"""The wish to stop: it comes through whatever the main thread is at."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from epd.cli.stop_request import StopRequest

#: Waits end all the time, and signals come all the time: most of them within a wait. With a
#: ``threading.Event`` in its place this stands still after a few hundred of them.
FLOODED = """
import os, signal, threading
from epd.cli.stop_request import StopRequest

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
