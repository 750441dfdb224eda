"""Child processes that only decode, for a worker whose threads do all other work.

A thread borrows a child for one call and talks to it alone. A child whose call did not end is killed, and
replaced. All children are started by one thread, which lives as long as the pool: Linux ends a child together
with the thread that started it (``epd.processes.die_with_parent``).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from epd.contracts.embedding import AudioRules, VideoRules
from epd.contracts.errors import DecodeTimeout, Internal, WorkerCrashed
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawImage
from workers.decode.child_process import ChildDied, ChildProcess, WorkNotRead
from workers.decode.exchange import (
    Decoded,
    DecodeRequest,
    Failure,
    Request,
    ToWorker,
    Track,
    TrackRequest,
    Unexpected,
    limits_of,
)
from workers.decode.probe import AudioTrack
from workers.limits import DecodeLimits, Hold

logger = logging.getLogger(__name__)

#: Calls after which a child is replaced, since decoders leak.
_MOST_CALLS = 2000
#: Seconds that a call waits for a free child, in addition to the time of the call before it: a child that is
#: killed at its limit is replaced first.
QUEUE_SECONDS = 60.0
#: Seconds between two looks at the children that wait for work.
_LOOK_PERIOD = 1.0

_Answer = TypeVar("_Answer", Decoded, Track)


class DecodeChildren:
    """A pool of decode children. Safe to use from many threads.

    Attributes:
        count: children that decode at the same time.
    """

    def __init__(self, count: int, *, tries: int = 3) -> None:
        """Use ``count`` children. A call whose child dies is tried ``tries`` times in all."""
        self.count = count
        self._tries = tries
        self._lock = threading.Lock()
        self._idle: deque[ChildProcess] = deque()
        self._turns: deque[Future[ChildProcess]] = deque()
        self._children: set[ChildProcess] = set()
        self._spare: ChildProcess | None = None
        self._launches: queue.SimpleQueue[ChildProcess | None] = queue.SimpleQueue()
        self._launcher: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start all children in the background. Can be called more than once."""
        with self._lock:
            if self._launcher is None and not self._closed:
                self._launcher = threading.Thread(
                    target=self._launch_all, name="decode-children", daemon=True
                )
                self._launcher.start()
                self._idle.extend(self._new_child() for _ in range(self.count))

    @property
    def idle(self) -> int:
        """Children without work."""
        return len(self._idle)

    @property
    def pids(self) -> list[int]:
        """The process ids of the children that run."""
        with self._lock:
            return [child.pid for child in self._children if child.pid is not None]

    def decode(
        self,
        path: Path,
        *,
        modality: Modality,
        options: ItemOptions,
        rules: AudioRules | VideoRules | None,
        limits: DecodeLimits,
        out: Path,
        timeout: float,
    ) -> RawImage | RawFrames | RawAudio:
        """Decode a file in a child, as ``workers.decode.decode.decode`` does.

        Waits for a free child, in the order of the calls, for at most ``timeout`` and ``QUEUE_SECONDS``. The
        decoding may then take ``timeout`` with all tries together. ``limits.hold`` is called in this thread.

        Raises:
            CallerFault, BlobSpaceFull: as ``workers.decode.decode.decode``.
            BlobMissing: the file is gone.
            DecodeTimeout: the time is over, or no child was free in time. Nothing of the decode still runs.
            WorkerCrashed: as many children died of it as there are tries.
            Internal: the decoder raised something else, which is logged.
        """
        request = DecodeRequest(
            path=str(path),
            modality=modality,
            options=options,
            rules=rules,
            limits=limits_of(limits),
            out=str(out),
        )
        try:
            return self._call(request, Decoded, limits.hold, timeout).raw
        except BaseException:
            _remove_output(request)
            raise

    def audio_track(self, path: Path, *, limits: DecodeLimits, timeout: float) -> AudioTrack | None:
        """Find the audio track of a file in a child, as ``workers.decode.decode.audio_track`` does.

        Raises:
            CallerFault, BlobMissing, DecodeTimeout, WorkerCrashed, Internal: as ``decode``.
        """
        request = TrackRequest(path=str(path), limits=limits_of(limits))
        return self._call(request, Track, limits.hold, timeout).track

    def close(self) -> None:
        """End all children, within seconds. A call that still runs or waits raises ``WorkerCrashed``."""
        with self._lock:
            self._closed = True
            children, idle, turns = [*self._children], [*self._idle], [*self._turns]
            for emptied in (self._children, self._idle, self._turns):
                emptied.clear()
        for turn in turns:
            turn.set_exception(_closed())
        for child in children:
            child.kill()
        for child in idle:  # the others are ended by their calls
            child.end()
        self._launches.put(None)

    def _call(self, request: Request, expected: type[_Answer], hold: Hold, timeout: float) -> _Answer:
        child = self._borrow(timeout + QUEUE_SECONDS)
        died, deadline = 0, None
        try:
            while died < self._tries:
                if not child.is_ready():
                    died, child = died + 1, self._replace(child)
                    continue
                deadline = deadline or time.monotonic() + timeout
                try:
                    answer = child.ask(request, hold, deadline)
                except TimeoutError:
                    raise DecodeTimeout("decoding took longer than its limit") from None
                except (WorkNotRead, ChildDied) as error:
                    died, child = died + isinstance(error, ChildDied), self._replace(child)
                    _remove_output(request)
                    continue
                return _checked(answer, expected)
            raise WorkerCrashed(f"{self._tries} decode processes died of this item")
        finally:
            self._give_back(child)

    def _borrow(self, timeout: float) -> ChildProcess:
        """A child that is not at work. Calls get theirs in the order in which they come."""
        self.start()
        with self._lock:
            if self._closed:
                raise _closed()
            while self._idle:
                child = self._idle.pop()
                if not child.is_gone():
                    return child
                self._idle.appendleft(self._renewed(child))
            turn: Future[ChildProcess] = Future()
            self._turns.append(turn)
        try:
            return turn.result(timeout)
        except TimeoutError:
            return self._give_up(turn)

    def _give_up(self, turn: Future[ChildProcess]) -> ChildProcess:
        """Leave the queue. The child, if one came at the last moment."""
        with self._lock:
            if turn in self._turns:
                self._turns.remove(turn)
                raise DecodeTimeout("no decode process was free in time")
        return turn.result(0)

    def _give_back(self, child: ChildProcess) -> None:
        if child.is_busy:  # the call ended without an answer
            child.end()
        with self._lock:
            if not self._closed:
                self._pass_on(self._renewed(child) if child.is_busy else self._unworn(child))
                return
        child.end()

    def _pass_on(self, child: ChildProcess) -> None:
        if self._turns:
            self._turns.popleft().set_result(child)
        elif child.calls:
            self._idle.append(child)  # the last one used is the next one used: its memory is warm
        else:
            self._idle.appendleft(child)  # it may still be starting

    def _unworn(self, child: ChildProcess) -> ChildProcess:
        """The child itself, or another one after ``_MOST_CALLS``: as soon as that has started."""
        if child.calls < _MOST_CALLS:
            return child
        spare = self._spare
        if spare is None or spare.is_gone():
            self._spare = self._new_child() if spare is None else self._renewed(spare)
        elif spare.is_ready(within=0):
            self._spare = None
            self._children.discard(child)
            child.end()
            return spare
        return child

    def _replace(self, child: ChildProcess) -> ChildProcess:
        """End a child and start another one in the background."""
        child.end()
        with self._lock:
            if self._closed:
                raise _closed()
            return self._renewed(child)

    def _renewed(self, child: ChildProcess) -> ChildProcess:
        """Another child for one that has ended."""
        self._children.discard(child)
        child.end()
        return self._new_child()

    def _new_child(self) -> ChildProcess:
        child = ChildProcess()
        self._children.add(child)
        self._launches.put(child)
        return child

    def _launch_all(self) -> None:
        """The thread that starts the children. It ends after them."""
        while True:
            try:
                child = self._launches.get(timeout=_LOOK_PERIOD)
            except queue.Empty:
                self._look()
                continue
            if child is None:
                return
            child.launch()

    def _look(self) -> None:
        """Replace the children that died without work."""
        with self._lock:
            for place, child in enumerate(self._idle):
                if child.is_gone():
                    self._idle[place] = self._renewed(child)


def _checked(answer: ToWorker, expected: type[_Answer]) -> _Answer:
    """The answer if it is no error."""
    if isinstance(answer, expected):
        return answer
    if isinstance(answer, Failure):
        raise answer.to_error()
    reason = answer.traceback if isinstance(answer, Unexpected) else f"it answered {type(answer).__name__}"
    logger.error("a decode process failed: %s", reason)
    raise Internal("decoding failed; the worker's log says why")


def _remove_output(request: Request) -> None:
    """Remove what a dead child wrote. Its ffmpeg may be dying still, and must not write to the next file."""
    if isinstance(request, DecodeRequest):
        Path(request.out).unlink(missing_ok=True)


def _closed() -> WorkerCrashed:
    return WorkerCrashed("the worker stopped while the item was decoded")
