"""What one worker process holds of the broker's messages: popped, not yet acked, findable by others."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from tasks.transport import keys as broker_keys
from tasks.transport.keys import raise_for_first, ring, script_text
from tasks.transport.liveness import ProcessMark

logger = logging.getLogger(__name__)

#: Most messages that one script call hands back: Redis serves nobody else meanwhile.
GIVE_BACK_CHUNK = 500

#: How many suspects, messages that were in a worker when it died, one worker holds at a time.
SUSPECT_COMPANY = 8


@dataclass(frozen=True, slots=True)
class Parcel:
    """One popped message: its lane's place in the list given to ``pop``, and what acks it."""

    lane: int
    receipt: int
    deliveries: int
    redelivered: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class Haul:
    """Result of one pop.

    ``blocked``: suspects wait that only a worker with fewer of them may take. ``solitude``: a message waits
    that only a worker with nothing in hand may take.
    """

    parcels: tuple[Parcel, ...]
    blocked: bool
    solitude: bool


class UnackedLedger:
    """The unacked hash of one session, and the only code that changes it.

    Thread-safe. Every method but ``ack`` talks to Redis and raises ``redis.RedisError`` when that fails.
    """

    def __init__(self, client: redis.Redis, *, name: str, max_deliveries: int) -> None:
        self.client = client
        self.session = f"{name}.{uuid.uuid4().hex[:12]}"
        self.max_deliveries = max_deliveries
        self.descriptor = json.dumps({"name": name, "since": time.time(), **ProcessMark.own().as_dict()})
        self._pop: Any = client.register_script(script_text("pop"))
        self._beat: Any = client.register_script(script_text("beat"))
        self._pending: list[int] = []
        self._pending_lock = threading.Lock()
        self._blocked_lane: str | None = None
        self._closed = False

    def pop(self, lanes: Sequence[str], *, limit: int, company: int, take_solo: bool) -> Haul:
        """Take up to ``limit`` messages off ``lanes``, first lane first. See ``lua/pop.lua``."""
        keys = [broker_keys.unacked(self.session), broker_keys.SESSIONS, broker_keys.RECEIPTS]
        for lane in lanes:
            keys += [lane, *broker_keys.side_lists(lane), broker_keys.bell(lane)]
        args = [limit, company, int(take_solo), self.session, self.descriptor, broker_keys.BELL_TTL_S]
        blocked, *flat = self._pop(keys=keys, args=args)
        self._blocked_lane = lanes[0] if blocked else None
        fields = iter(flat)
        parcels = tuple(Parcel(*five) for five in zip(*[fields] * 5, strict=True))
        return Haul(parcels, blocked=blocked > 0, solitude=blocked == 2)

    def beat(self, count: int) -> None:
        """Sign the session on, and say that it lives. ``count`` differs each time."""
        keys = [broker_keys.beat(self.session), broker_keys.SESSIONS]
        args = [count, broker_keys.BEAT_TTL_S, self.session, self.descriptor]
        self._beat(keys=keys, args=args)

    def ack(self, receipt: int) -> bool:
        """Note a message as done; ``flush`` tells the server. True for the first one noted since a flush."""
        with self._pending_lock:
            self._pending.append(receipt)
            return len(self._pending) == 1

    def flush(self) -> int:
        """Remove all noted messages in one round trip. What was given away meanwhile stays given away."""
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
        """Hand these back to the head of their lanes; returns how many were still ours."""
        moved, _ = give_back(self, self.session, receipts, crashed=crashed) if receipts else (0, 0)
        return moved

    def settle(self) -> None:
        """End of the session in good order: tell the acks, hand back the rest, sign off."""
        self.flush()
        give_back_all(self, self.session, crashed=False)
        self.client.delete(broker_keys.beat(self.session))

    def close(self) -> None:
        """Drop the connections. Acks that come later are of messages already handed back."""
        self._closed = True
        self.client.connection_pool.disconnect(inuse_connections=False)

    def wait_for_room(self, lane: str) -> None:
        """Ring at ``lane`` with the next ack: this worker left something there because of what it holds."""
        self._blocked_lane = lane

    def _remove(self, receipts: Sequence[int]) -> None:
        lane, self._blocked_lane = self._blocked_lane, None
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hdel(broker_keys.unacked(self.session), *receipts)
            if lane is not None:
                ring(pipe, lane)
            raise_for_first(pipe.execute(raise_on_error=False))


def give_back(
    ledger: UnackedLedger, session: str, receipts: Sequence[int] = (), *, crashed: bool
) -> tuple[int, int]:
    """One call of ``lua/give_back.lua`` for any session, own or dead; returns (moved, left)."""
    script: Any = ledger.client.register_script(script_text("give_back"))
    args = [
        int(crashed), ledger.max_deliveries, GIVE_BACK_CHUNK, session,
        broker_keys.AGAIN_PREFIX, broker_keys.SOLO_PREFIX, broker_keys.BELL_PREFIX, broker_keys.BELL_TTL_S,
        broker_keys.POISON_CAP, broker_keys.POISON_TTL_S, *receipts,
    ]  # fmt: skip
    keys = [broker_keys.unacked(session), broker_keys.SESSIONS, broker_keys.POISON]
    moved, left = script(keys=keys, args=args)
    return int(moved), int(left)


def give_back_all(ledger: UnackedLedger, session: str, *, crashed: bool) -> int:
    """Hand back all that a session holds, a chunk a call; returns how many."""
    total = 0
    while True:
        moved, left = give_back(ledger, session, crashed=crashed)
        total += moved
        if left == 0 or moved == 0:
            return total
