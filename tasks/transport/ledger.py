"""What one worker process holds of the broker's messages: popped, not yet acked, findable by others.

A message that was in a worker when it died is *quarantined*: it may have killed that worker. A worker holds
few quarantined messages at a time, and one on its last try (*solo*) alone, so that a message that kills its
workers takes few others with it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import NoScriptError

from epd.round_trip import round_trip
from tasks.transport import keys
from tasks.transport.keys import raise_for_first, ring_commands, script_text
from tasks.transport.liveness import describe_own_process

#: Most messages that one script call gives back: Redis serves nobody else while it runs.
GIVE_BACK_CHUNK = 500

#: Most quarantined messages that one worker holds at a time.
QUARANTINE_LIMIT = 8


@dataclass(frozen=True, slots=True)
class PoppedMessage:
    """One popped message. ``lane`` is an index into the lanes given to ``pop``; ``receipt`` acks it."""

    lane: int
    receipt: int
    deliveries: int
    redelivered: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class PopResult:
    """Result of one pop.

    ``blocked``: quarantined messages wait that only a worker with fewer of them may take. ``solo_waiting``:
    a message waits that only a worker that holds nothing may take.
    """

    messages: tuple[PoppedMessage, ...]
    blocked: bool
    solo_waiting: bool


class UnackedLedger:
    """The unacked hash of one session, and the only code that changes it.

    Thread-safe. Every method but ``ack`` talks to Redis and raises ``redis.RedisError`` when that fails.
    """

    def __init__(self, client: redis.Redis, *, name: str, max_deliveries: int) -> None:
        self.client = client
        self.session = f"{name}.{uuid.uuid4().hex[:12]}"
        self.max_deliveries = max_deliveries
        self.descriptor = describe_own_process(name)
        self._pop: Any = client.register_script(script_text("pop"))
        self._beat: Any = client.register_script(script_text("beat"))
        self._pending: list[int] = []
        self._pending_lock = threading.Lock()
        self._blocked_lane: str | None = None
        self._closed = False

    def pop(self, lanes: Sequence[str], *, limit: int, quarantine_room: int, take_solo: bool) -> PopResult:
        """Take messages off ``lanes``, first lane first, and record them as unacked. See ``lua/pop.lua``.

        Args:
            lanes: where to take from, in this order.
            limit: most messages to take.
            quarantine_room: how many more quarantined messages this worker may hold.
            take_solo: whether this worker may take a message that must be alone.
        """
        script_keys = [keys.unacked(self.session), keys.SESSIONS, keys.RECEIPTS]
        for lane in lanes:
            script_keys += [lane, *keys.side_lists(lane), keys.bell(lane)]
        args = [limit, quarantine_room, int(take_solo), self.session, self.descriptor, keys.BELL_TTL_S]
        blocked, *flat = self._run(self._pop, script_keys, args)
        self._blocked_lane = lanes[0] if blocked else None
        fields = iter(flat)
        messages = tuple(PoppedMessage(*five) for five in zip(*[fields] * 5, strict=True))
        return PopResult(messages, blocked=blocked > 0, solo_waiting=blocked == 2)

    def beat(self, count: int) -> None:
        """Register the session and show that it is alive. ``count`` differs each time."""
        args = [count, keys.BEAT_TTL_S, self.session, self.descriptor]
        self._beat(keys=[keys.beat(self.session), keys.SESSIONS], args=args)

    def ack(self, receipt: int) -> bool:
        """Note a message as done; ``flush`` removes it. True for the first one noted since a flush."""
        with self._pending_lock:
            self._pending.append(receipt)
            return len(self._pending) == 1

    def flush(self) -> int:
        """Remove all noted messages in one round trip; returns how many were noted.

        A message that has been given to another worker since then stays there.
        """
        with self._pending_lock:
            receipts, self._pending = self._pending, []
        if not receipts or self._closed:
            return 0
        try:
            self._remove(receipts)
        except BaseException:
            with self._pending_lock:
                self._pending[:0] = receipts
            raise
        return len(receipts)

    def give_back(self, receipts: Sequence[int], *, crashed: bool) -> int:
        """Return these messages to the head of their lanes; returns how many this session still held."""
        moved, _ = give_back(self, self.session, receipts, crashed=crashed) if receipts else (0, 0)
        return moved

    def settle(self) -> None:
        """End the session in good order: flush the acks, give back the rest, remove the registration."""
        self.flush()
        give_back_all(self, self.session, crashed=False)
        self.client.delete(keys.beat(self.session))

    def close(self) -> None:
        """Drop the connections. Any later ack is of a message that was already given back."""
        self._closed = True
        self.client.connection_pool.disconnect(inuse_connections=False)

    def ring_after_ack(self, lane: str) -> None:
        """Ring at ``lane`` with the next ack: this worker left messages there because of what it holds."""
        self._blocked_lane = lane

    def _remove(self, receipts: Sequence[int]) -> None:
        lane, self._blocked_lane = self._blocked_lane, None
        bells = [] if lane is None else ring_commands(lane)
        raise_for_first(round_trip(self.client, [("HDEL", keys.unacked(self.session), *receipts), *bells]))

    def _run(self, script: Any, script_keys: Sequence[str], args: Sequence[Any]) -> Any:
        command = ("EVALSHA", script.sha, len(script_keys), *script_keys, *args)
        (answer,) = round_trip(self.client, [command])
        if isinstance(answer, NoScriptError):
            return script(keys=script_keys, args=args)  # loads it
        raise_for_first([answer])
        return answer


def give_back(
    ledger: UnackedLedger, session: str, receipts: Sequence[int] = (), *, crashed: bool
) -> tuple[int, int]:
    """Call ``lua/give_back.lua`` once for any session, our own or a dead one.

    Args:
        ledger: gives the connection and the limit of deliveries.
        session: the session that holds the messages.
        receipts: only these messages; empty: all of the session.
        crashed: whether the worker died with them, so that their delivery counts rise.

    Returns:
        How many messages were moved, and how many the session still holds.
    """
    script: Any = ledger.client.register_script(script_text("give_back"))
    args = [
        int(crashed), ledger.max_deliveries, GIVE_BACK_CHUNK, session,
        keys.AGAIN_PREFIX, keys.SOLO_PREFIX, keys.BELL_PREFIX, keys.BELL_TTL_S,
        keys.POISON_CAP, keys.POISON_TTL_S, *receipts,
    ]  # fmt: skip
    moved, left = script(keys=[keys.unacked(session), keys.SESSIONS, keys.POISON], args=args)
    return int(moved), int(left)


def give_back_all(ledger: UnackedLedger, session: str, *, crashed: bool) -> int:
    """Give back everything that a session holds, ``GIVE_BACK_CHUNK`` a call; returns how many messages."""
    total = 0
    while True:
        moved, left = give_back(ledger, session, crashed=crashed)
        total += moved
        if left == 0 or moved == 0:
            return total
