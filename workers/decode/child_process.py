"""A decode child as its worker sees it: started, asked one thing at a time, and killed."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from epd.contracts.errors import EpdError
from epd.settings import environment_without_settings
from workers.decode.exchange import (
    TO_WORKER,
    Channel,
    Failure,
    Hello,
    HoldAnswer,
    HoldRequest,
    Request,
    ToWorker,
)
from workers.limits import Hold

logger = logging.getLogger(__name__)

#: Seconds from the start of a child to its hello.
_START_SECONDS = 60.0
#: Seconds in which a killed process ends, unless the kernel holds it. It is then left to ``subprocess``.
_END_SECONDS = 5.0
#: Makes the start of a child cheaper: no threads for matrices, no search for pydantic's plug-ins.
_QUICK_START = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
#: The folder that holds the package ``workers``.
_ROOT = Path(__file__).resolve().parents[2]


class ChildDied(Exception):
    """The child ended, or sent nonsense, after it had begun to decode."""


class WorkNotRead(Exception):
    """The child ended before it read the request, which cannot be the reason."""


class ChildProcess:
    """One child. All but ``kill`` and ``launch`` are for the one thread that has borrowed it.

    Attributes:
        calls: calls that it answered.
        is_busy: a call has begun and not ended. It ends with its answer alone.
    """

    def __init__(self) -> None:
        """Nothing is started before ``launch``."""
        self.calls = 0
        self.is_busy = False
        self._lock = threading.Lock()
        self._launched = threading.Event()
        self._greeted = False
        self._killed = False
        self._ready_by = time.monotonic() + _START_SECONDS
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None before the launch."""
        return None if self._process is None else self._process.pid

    def launch(self) -> None:
        """Start the process, unless it was killed before. The calling thread must outlive it."""
        try:
            with self._lock:
                if not self._killed:
                    self._channel, self._process = _start()
        except Exception:  # the end of the calling thread would end all other children
            logger.exception("a decode process cannot be started")
        finally:
            self._launched.set()

    def is_ready(self, within: float = _START_SECONDS) -> bool:
        """Wait for the hello, at most ``within`` seconds and not longer than a start may take."""
        if not self._greeted:
            deadline = min(self._ready_by, time.monotonic() + within)
            self._launched.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ChildDied, WorkNotRead, TimeoutError):
                self._greeted = isinstance(self._receive(deadline), Hello)
        return self._greeted

    def is_gone(self) -> bool:
        """Whether the process has ended, or could not be started."""
        return self._launched.is_set() and (self._process is None or self._process.poll() is not None)

    def ask(self, request: Request, hold: Hold, deadline: float) -> ToWorker:
        """Send a request and wait for its answer. ``hold`` is called in this thread when the child asks.

        Raises:
            TimeoutError: there is no answer at ``deadline``, in seconds of ``time.monotonic``.
            WorkNotRead: the child ended before it read the request.
            ChildDied: it ended later.
        """
        self.is_busy = True
        assert self._channel is not None
        try:
            self._channel.send(request, deadline)
        except ConnectionError:
            raise WorkNotRead from None
        answer = self._receive(deadline)
        while isinstance(answer, HoldRequest):
            refusal = _refusal(hold, answer.nbytes)
            try:
                self._channel.send(HoldAnswer(refusal=refusal), deadline)
                answer = self._receive(deadline)
            except (ConnectionError, WorkNotRead):
                raise ChildDied from None
        self.is_busy = False
        self.calls += 1
        return answer

    def _receive(self, deadline: float) -> ToWorker:
        if self._channel is None:
            raise ChildDied
        try:
            return TO_WORKER.validate_json(self._channel.receive(deadline))
        except ConnectionResetError:
            # Linux resets a local connection whose end is closed with unread data.
            raise WorkNotRead from None
        except (EOFError, ValueError):
            raise ChildDied from None

    def kill(self) -> None:
        """Kill the process. Its ffmpeg dies with it."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Kill the process, wait until it is gone, and close the connection."""
        self.kill()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        if self._channel is not None:
            self._channel.close()


def _start() -> tuple[Channel, subprocess.Popen[bytes]]:
    """Start a fresh interpreter that has one end of a connection, stderr and nothing else of this process."""
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.decode.child", str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=_environment(),
            process_group=0,  # a signal for the worker's group is not for a decode that runs
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Channel(ours), process


def _environment() -> dict[str, str]:
    environment = environment_without_settings(_QUICK_START)
    path = environment.get("PYTHONPATH")
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, (path, str(_ROOT))))}


def _refusal(hold: Hold, nbytes: int) -> Failure | None:
    """Reserve space; returns why that is refused."""
    try:
        hold(nbytes)
    except EpdError as error:
        return Failure.of(error)
    return None
