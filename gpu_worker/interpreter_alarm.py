"""Ending a process whose interpreter is stuck: a thread in C code that never gives the GIL back.

No Python thread can act then, not even to notice. ``faulthandler`` waits in a C thread without the GIL:
unless it is told again in time, it writes every thread's traceback to stderr and ends the process with
status 1.
"""

from __future__ import annotations

import faulthandler
import threading

_TURNS_PER_LIMIT = 8


class InterpreterAlarm:
    """Ends the process when no Python code ran for ``limit`` seconds. One a process."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="interpreter-alarm", daemon=True)

    def start(self) -> None:
        """Set the alarm, and put it off again and again."""
        faulthandler.dump_traceback_later(self._limit, exit=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel the alarm: what ends a process may take as long as it likes."""
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._stopped.wait(self._limit / _TURNS_PER_LIMIT):
            faulthandler.dump_traceback_later(self._limit, exit=True)
        faulthandler.cancel_dump_traceback_later()
