"""A decoding child as its parent sees it: a process, the socket to it, and until when it may take."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from epd.contracts.errors import EpdError, Internal
from epd.processes import die_with_parent
from epd.settings import bare_environment
from workers.decode.serving import Answer, DecodeRequest, Hold, ProbeRequest
from workers.limits import Hold as HoldFunction

logger = logging.getLogger(__name__)

#: Decodes after which a child is replaced, in case it leaks; the cost of a new one hardly counts then.
LIFE = 2000

#: Seconds in which a child has to say hello.
START_SECONDS = 60.0

#: glibc: keep freed memory up to 128 MiB, and pieces of up to 32 MiB in the heap. So an image is decoded into
#: pages that the child has already, which saves a fifth of the time.
_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


class Died(Exception):
    """The child ended before it answered."""


class Child:
    """One process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.decode", str(theirs.fileno())],
                env=bare_environment(_HEAP),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a signal for the worker's group is not for its children
                preexec_fn=die_with_parent,  # noqa: PLW1509  only calls prctl
            )
        self._connection = Connection(ours.detach())
        self._served = 0
        #: Monotonic seconds at which it is killed; None while it is idle.
        self.deadline: float | None = time.monotonic() + START_SECONDS
        self.is_late = False
        self.is_ready = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_worn(self) -> bool:
        """Whether it has served long enough."""
        return self._served >= LIFE

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def greet(self) -> bool:
        """Whether it has said hello by now."""
        with suppress(EOFError, OSError):
            if not self.is_ready and self._connection.poll():
                self._connection.recv()
                self.is_ready, self.deadline = True, None
        return self.is_ready

    def ask(self, request: DecodeRequest | ProbeRequest, hold: HoldFunction, timeout: float) -> Answer:
        """Have a request served.

        Raises:
            Died: it ended first, or was killed because the time was over (``is_late``).
        """
        self.deadline = time.monotonic() + timeout
        self._served += 1
        try:
            self._connection.send(request)
            while isinstance(said := self._connection.recv(), Hold):
                self._connection.send(_refusal(hold, said.nbytes))
        except (EOFError, OSError) as error:
            raise Died from error
        finally:
            self.deadline = None
        assert isinstance(said, Answer)
        return said

    def kill(self) -> None:
        """End it and its own children at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)

    def close(self) -> None:
        """Close the socket, which ends an idle child."""
        self._connection.close()


def _refusal(hold: HoldFunction, nbytes: int) -> EpdError | None:
    try:
        hold(nbytes)
    except EpdError as error:
        return error
    except Exception:
        logger.exception("no room could be reserved")
        return Internal("no room could be reserved")
    return None
