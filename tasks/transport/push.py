"""The publishers' way to the lanes: threads that push at the same moment share one round trip."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import redis

from epd.round_trip import Command, round_trip
from tasks.transport.keys import ring_commands

#: What one call pushes: pairs of a lane and a message's bytes.
Messages = Sequence[tuple[str, bytes]]


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Call:
    """One waiting call. ``turn`` is released once: when it was sent or failed, or when it is to lead."""

    messages: Messages
    turn: threading.Lock = field(default_factory=_locked)
    is_sent: bool = False
    error: BaseException | None = None


class LanePusher:
    """Pushes messages and rings, from any number of threads.

    The first thread leads: it sends everything that waits in one trip. What others push during that trip
    waits for the next one, which the first of them leads. So no call waits for more than two trips, and none
    waits for a free connection.
    """

    def __init__(self, connect: Callable[[], redis.Redis]) -> None:
        """Prepare a pusher that connects with its first trip.

        Args:
            connect: makes the client, whose calls must have time limits; called by one thread at a time.
        """
        self._connect = connect
        self._client: redis.Redis | None = None
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._leader: _Call | None = None

    @property
    def client(self) -> redis.Redis | None:
        """The client, which is thread-safe; None before the first trip."""
        return self._client

    def push(self, messages: Messages, *, within: float) -> None:
        """Push messages to their lanes, in order, and wake idle workers.

        Args:
            messages: pairs of lane and bytes.
            within: seconds that the call waits for its trip. The client's limits bound the trip itself.

        Raises:
            redis.RedisError, OSError: the server did not take all of them. It may have taken some.
        """
        call = _Call(messages)
        try:
            if not self._join(call) and not call.turn.acquire(timeout=within):
                raise redis.TimeoutError(f"no trip to the broker within {within:.1f} s")
            if self._leader is call:
                self._lead()
        finally:
            self._leave(call)
        if not call.is_sent:
            raise redis.ConnectionError("the broker did not take a push") from call.error

    def _join(self, call: _Call) -> bool:
        """Queue a call; True when it leads."""
        with self._lock:
            self._waiting.append(call)
            if self._leader is None:
                self._leader = call
            return self._leader is call

    def _lead(self) -> None:
        with self._lock:
            calls, self._waiting = self._waiting, []
        try:
            self._send([pair for call in calls for pair in call.messages])
            for call in calls:
                call.is_sent = True
        except BaseException as error:
            for call in calls:
                call.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            for call in calls[1:]:
                call.turn.release()

    def _leave(self, call: _Call) -> None:
        """Whatever ended a call, it neither stays in the queue nor keeps the lead."""
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
            if self._leader is call:
                self._leader = self._waiting[0] if self._waiting else None
                if self._leader is not None:
                    self._leader.turn.release()

    def _send(self, messages: Messages) -> None:
        if self._client is None:
            self._client = self._connect()
        lanes: dict[str, list[bytes]] = {}
        for lane, raw in messages:
            lanes.setdefault(lane, []).append(raw)
        commands: list[Command] = [("LPUSH", lane, *raws) for lane, raws in lanes.items()]
        commands += [command for lane in lanes for command in ring_commands(lane)]
        answers = round_trip(self._client, commands)
        for answer in answers[: len(lanes)]:  # a ring that failed costs half a second at most
            if isinstance(answer, Exception):
                raise answer
