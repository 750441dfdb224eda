"""The parent of several workers on one machine: one process for each device, and no life without all of them.

It loads neither torch nor Celery. Any of its workers that fails ends the others, and then itself with that
status: whatever supervises it (``epd up``, systemd, a container's restart policy) starts all of them anew.
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

#: What each signal of the parent is to its workers. A terminal's Ctrl-C reaches the parent alone, since they
#: have process groups of their own; a terminal that closes asks for a kind end (Celery would restart).
_PASSED_ON = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGQUIT: signal.SIGQUIT,
    signal.SIGHUP: signal.SIGTERM,
}
#: How a worker ends that was signalled before it had handlers of its own.
_ASKED_ENDS = frozenset(-number for number in _PASSED_ON.values())
_LOOK_PERIOD = 0.05
#: Seconds for all to end after the first failed or a signal came: their own warm shutdown takes no longer.
_STOP_LIMIT = 70.0
_KILL_LIMIT = 10.0


class Siblings:
    """Workers that are started, given the signals of their parent, and ended together."""

    def __init__(self, commands: Sequence[Sequence[str]], stop_limit: float = _STOP_LIMIT) -> None:
        """One command line for each worker; after ``stop_limit`` seconds those that do not end are killed."""
        self._commands = commands
        self._stop_limit = stop_limit
        self._workers: list[subprocess.Popen[bytes]] = []
        self._asked_at: float | None = None

    def run(self) -> int:
        """Start all, and wait for the end of all; the status of the first that failed, else 0.

        Only for the main thread: Linux kills the workers when the thread that started them ends.
        """
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        try:
            self._start()
            status = self._watch()
        finally:
            killed = self._end()
        return status or (exit_status(-signal.SIGKILL) if killed else 0)

    def _start(self) -> None:
        for command in self._commands:
            if self._asked_at is not None:
                break
            worker = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=die_with_parent,  # noqa: PLW1509  only calls prctl
            )
            self._workers.append(worker)
            _log.info("worker %d: %s", worker.pid, " ".join(command))
        if self._asked_at is not None:  # the signal may have come before the last worker was known
            self._ask(signal.SIGTERM)

    def _watch(self) -> int:
        """Wait until one has failed unasked, all have ended, or the time to end is over; the status."""
        while True:
            statuses = [worker.poll() for worker in self._workers]
            asked = self._asked_at is not None
            failed = [one for one in statuses if one and not (asked and one in _ASKED_ENDS)]
            if None not in statuses or (failed and not asked) or self._is_late():
                return exit_status(failed[0]) if failed else 0
            time.sleep(_LOOK_PERIOD)

    def _is_late(self) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at > self._stop_limit

    def _end(self) -> bool:
        """Leave no worker behind: they are asked, have their time, and then are killed. True: one was."""
        while (left := self._running()) and not self._is_late():
            if self._asked_at is None:
                _log.error("a worker has failed: the other %d are stopped", len(left))
                self._ask(signal.SIGTERM)
            time.sleep(_LOOK_PERIOD)
        for worker in left:
            worker.kill()
            worker.wait(_KILL_LIMIT)
        return bool(left)

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [worker for worker in self._workers if worker.poll() is None]

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._ask(_PASSED_ON[signal.Signals(number)])

    def _ask(self, number: signal.Signals) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        for worker in self._workers:
            if worker.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)


def exit_status(returncode: int) -> int:
    """A process's return code as a status: one that a signal ended gives 128 and the signal's number."""
    return returncode if returncode >= 0 else 128 - returncode


def run_siblings(arguments: Sequence[Sequence[str]]) -> int:
    """Run ``python -m gpu_worker`` once for each list of arguments; the status to end with."""
    return Siblings([[sys.executable, "-m", "gpu_worker", *own] for own in arguments]).run()
