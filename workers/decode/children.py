"""Child processes that only decode, for a worker whose threads do everything else.

A child that dies costs its own item a try and nobody else anything. One that takes too long is killed, with
the ffmpeg that it runs. A fork of a process with many threads would not be safe, so every child is a fresh
interpreter; it says hello when it has imported all that it needs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from epd.contracts.errors import DecodeTimeout, WorkerCrashed
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawImage
from workers.decode.child import START_SECONDS, Child, Died
from workers.decode.decode import Rules
from workers.decode.probe import AudioTrack
from workers.decode.serving import DecodeRequest, ProbeRequest
from workers.limits import DecodeLimits, hold_nothing
from workers.limits import Hold as HoldFunction

logger = logging.getLogger(__name__)

#: Seconds between two looks at the children, and before a child that could not start is started again.
_LOOK_SECONDS, _PAUSE_SECONDS = 0.1, 1.0

class DecodeChildren:
    """``count`` children. Thread-safe; a call waits in its thread until a child is free."""

    def __init__(self, count: int, *, tries: int = 3) -> None:
        """An item that ends ``tries`` children fails."""
        self.count = count
        self._tries = tries
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._idle: SimpleQueue[Child] = SimpleQueue()
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
            except Died:
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

    def _take(self, timeout: float) -> Child:
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

    def _drop(self, child: Child) -> None:
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
            child = Child()
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
