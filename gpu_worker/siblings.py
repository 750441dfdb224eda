"""The parent of several workers on one machine: one process per device, which run and end together.

It loads neither torch nor Celery. When a worker fails, the parent stops the others and exits with the status
of the failed one. Its own supervisor (``epd up``, systemd, a container's restart policy) then restarts all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from epd.processes import die_with_parent

_log = logging.getLogger(__name__)

#: Which signal the workers get for each that the parent gets. Workers have process groups of their own, so
#: Ctrl-C in a terminal reaches only the parent. A closed terminal (SIGHUP) stops them; Celery would restart.
_FORWARDED = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGQUIT: signal.SIGQUIT,
    signal.SIGHUP: signal.SIGTERM,
}
#: The return codes of a worker that was signalled before it had installed handlers: no failures.
_KILLED_BY_FORWARD = frozenset(-number for number in _FORWARDED.values())
_POLL_PERIOD = 0.05
#: Seconds for all to end after the first has failed or a signal came: longer than their warm shutdown.
_STOP_LIMIT = 70.0
_KILL_LIMIT = 10.0


class Siblings:
    """Worker processes that start together, get their parent's signals, and end together."""

    def __init__(self, commands: Sequence[Sequence[str]], stop_limit: float = _STOP_LIMIT) -> None:
        """``commands`` has one command line per worker. ``stop_limit``: seconds until workers are killed."""
        self._commands = commands
        self._stop_limit = stop_limit
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stopping_since: float | None = None

    def run(self) -> int:
        """Start all, wait until all have ended, and return the status of the first that failed, or 0.

        Call it on the main thread: Linux kills the workers when the thread that started them ends.
        """
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        try:
            self._start()
            status = self._watch()
        finally:
            killed = self._end()
        return status or (exit_status(-signal.SIGKILL) if killed else 0)

    def _start(self) -> None:
        for command in self._commands:
            if self._stopping_since is not None:
                break
            worker = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=die_with_parent,  # noqa: PLW1509  only calls prctl
            )
            self._workers.append(worker)
            _log.info("worker %d: %s", worker.pid, " ".join(command))
        if self._stopping_since is not None:  # the last worker may have missed the signal
            self._signal_all(signal.SIGTERM)

    def _watch(self) -> int:
        """Wait until a worker has failed, all have ended, or the stop limit is over; return the status."""
        while True:
            codes = [worker.poll() for worker in self._workers]
            stopping = self._stopping_since is not None
            failed = [code for code in codes if code and not (stopping and code in _KILLED_BY_FORWARD)]
            if None not in codes or (failed and not stopping) or self._is_late():
                return exit_status(failed[0]) if failed else 0
            time.sleep(_POLL_PERIOD)

    def _is_late(self) -> bool:
        return self._stopping_since is not None and time.monotonic() - self._stopping_since > self._stop_limit

    def _end(self) -> bool:
        """Leave no worker behind: signal them, wait, then kill. Returns whether any had to be killed."""
        while (left := self._running()) and not self._is_late():
            if self._stopping_since is None:
                _log.error("a worker has failed: the other %d are stopped", len(left))
                self._signal_all(signal.SIGTERM)
            time.sleep(_POLL_PERIOD)
        for worker in left:
            worker.kill()
            worker.wait(_KILL_LIMIT)
        return bool(left)

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [worker for worker in self._workers if worker.poll() is None]

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._signal_all(_FORWARDED[signal.Signals(number)])

    def _signal_all(self, number: signal.Signals) -> None:
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
        for worker in self._workers:
            if worker.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)


def exit_status(returncode: int) -> int:
    """Convert a return code of ``subprocess`` to an exit status; signal N gives 128 + N, as in a shell."""
    return returncode if returncode >= 0 else 128 - returncode


def run_siblings(arguments: Sequence[Sequence[str]]) -> int:
    """Run ``python -m gpu_worker`` once per list of arguments; returns the status to exit with."""
    return Siblings([[sys.executable, "-m", "gpu_worker", *own] for own in arguments]).run()
