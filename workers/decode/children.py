"""Child processes that only decode, for a worker whose threads do everything else.

A child that dies costs its own item a try and nobody else anything. One that takes too long is killed, with
the ffmpeg that it runs. A fork of a process with many threads would not be safe, so every child is a fresh
interpreter; it says hello when it has imported all that it needs.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from epd.contracts.errors import DecodeTimeout, EpdError, Internal, WorkerCrashed
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawImage
from epd.processes import die_with_parent
from workers.decode.child import Answer, DecodeRequest, Hold, ProbeRequest
from workers.decode.decode import Rules
from workers.decode.probe import AudioTrack
from workers.limits import DecodeLimits, hold_nothing
from workers.limits import Hold as HoldFunction

logger = logging.getLogger(__name__)

#: Decodes after which a child is replaced, in case it leaks; the cost of a new one hardly counts then.
LIFE = 2000

#: Seconds in which a child has to say hello.
START_SECONDS = 60.0

#: Seconds between two looks at the children, and before a child that could not start is started again.
_LOOK_SECONDS, _PAUSE_SECONDS = 0.1, 1.0

#: What a child does not get of the environment: the URLs of servers, with their passwords, are among it.
_KEPT_BACK = ("EPD_", "CELERY_")
#: glibc: keep freed memory up to 128 MiB, and pieces of up to 32 MiB in the heap. So an image is decoded into
#: pages that the child has already, which saves a fifth of the time.
_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


class _Died(Exception):
    """The child ended before it answered."""


class _Child:
    """One process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = os.environ.items()
            environment = {name: value for name, value in inherited if not name.startswith(_KEPT_BACK)}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.decode.child", str(theirs.fileno())],
                env=environment | _HEAP,
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
            _Died: it ended first, or was killed because the time was over (``is_late``).
        """
        self.deadline = time.monotonic() + timeout
        self._served += 1
        try:
            self._connection.send(request)
            while isinstance(said := self._connection.recv(), Hold):
                self._connection.send(_refusal(hold, said.nbytes))
        except (EOFError, OSError) as error:
            raise _Died from error
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


class DecodeChildren:
    """``count`` children. Thread-safe; a call waits in its thread until a child is free."""

    def __init__(self, count: int, *, tries: int = 3) -> None:
        """An item that ends ``tries`` children fails."""
        self.count = count
        self._tries = tries
        self._lock = threading.Lock()
        self._children: list[_Child] = []
        self._idle: SimpleQueue[_Child] = SimpleQueue()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def start(self) -> None:
        """Start the children, without waiting until they are ready. Later calls do nothing."""
        with self._lock:
            if self._keeper is None:
                # A child dies with the thread that started it, so one thread starts all and lives on.
                self._keeper = threading.Thread(target=self._keep, name="decode-children", daemon=True)
                self._keeper.start()

    def pids(self) -> list[int]:
        """The process ids of the children."""
        with self._lock:
            return [child.pid for child in self._children]

    def decode(
        self,
        path: Path,
        *,
        modality: Modality,
        rules: Rules,
        options: ItemOptions,
        limits: DecodeLimits,
        out: Path,
        timeout: float,
    ) -> RawImage | RawFrames | RawAudio:
        """Decode one track in a child, which is killed after ``timeout`` seconds.

        The rest is as for ``workers.decode.decode.decode``.

        Raises:
            DecodeTimeout: the time was over, or no child was free in that time.
            WorkerCrashed: the item ended as many children as it may.
        """
        plain = _without_hold(limits)
        request = DecodeRequest(path, modality, rules, options, plain, out)
        raw: RawImage | RawFrames | RawAudio = self._ask(request, limits.hold, timeout, out)
        return raw

    def audio_track(self, path: Path, *, limits: DecodeLimits, timeout: float) -> AudioTrack | None:
        """The audio track of a file, None if it has none; raises as ``decode``."""
        track: AudioTrack | None = self._ask(ProbeRequest(path, _without_hold(limits)), limits.hold, timeout)
        return track

    def close(self) -> None:
        """End all children."""
        self._closed.set()
        self._wake.set()
        if self._keeper is not None:
            self._keeper.join(10)

    def _ask(
        self,
        request: DecodeRequest | ProbeRequest,
        hold: HoldFunction,
        timeout: float,
        out: Path | None = None,
    ) -> Any:
        self.start()
        for _ in range(self._tries):
            child = self._take(timeout)
            try:
                answer = child.ask(request, hold, timeout)
            except _Died:
                self._drop(child)
                if out is not None:
                    _empty(out)
                if child.is_late:
                    raise DecodeTimeout("decoding took longer than its limit") from None
                logger.warning("a decoding child died of %s", request.path.name)
                continue
            except BaseException:
                self._drop(child)  # its answer would be taken for that of the next request
                raise
            if child.is_worn:
                self._drop(child)
            else:
                self._idle.put(child)
            if answer.error is not None:
                raise answer.error
            return answer.value
        raise WorkerCrashed(f"the item ended its decoding process {self._tries} times")

    def _take(self, timeout: float) -> _Child:
        """An idle child that is alive. One that died while it was idle is no try of any item."""
        end = time.monotonic() + timeout + START_SECONDS
        while True:
            try:
                child = self._idle.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                raise DecodeTimeout("no decoding process was free in time") from None
            if child.is_alive:
                return child
            self._drop(child)

    def _drop(self, child: _Child) -> None:
        """Have a child ended and replaced."""
        child.kill()
        child.close()
        with self._lock:
            if child in self._children:
                self._children.remove(child)
        self._wake.set()

    def _keep(self) -> None:
        """Start and replace children, note those that are ready, and kill those that are late."""
        while not self._closed.is_set():
            self._wake.clear()
            pause = _LOOK_SECONDS
            try:
                self._fill()
                self._look()
            except Exception:  # no process or no file can be had now
                logger.exception("a decoding child could not be started")
                pause = _PAUSE_SECONDS
            self._wake.wait(pause)
        with self._lock:
            children, self._children = self._children, []
        for child in children:
            child.kill()

    def _fill(self) -> None:
        with self._lock:
            missing = self.count - len(self._children)
        for _ in range(missing):
            child = _Child()
            with self._lock:
                self._children.append(child)

    def _look(self) -> None:
        now = time.monotonic()
        with self._lock:
            children = list(self._children)
        for child in children:
            if not child.is_ready and child.greet():
                self._idle.put(child)
            elif not child.is_ready and not child.is_alive:
                self._drop(child)
                raise RuntimeError("a decoding child ended before it was ready")
            elif child.deadline is not None and now > child.deadline:
                child.is_late = True
                child.kill()
                if not child.is_ready:
                    self._drop(child)


def _without_hold(limits: DecodeLimits) -> DecodeLimits:
    """Limits that can be pickled."""
    return DecodeLimits(**{**vars(limits), "hold": hold_nothing})


def _empty(out: Path) -> None:
    with suppress(FileNotFoundError):
        os.truncate(out, 0)
