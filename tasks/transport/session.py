"""A session's two threads: the heartbeat shows that this process is alive, the reclaimer watches all others.

The reclaimer of every consuming process watches all sessions. A dead session's messages go back to their
lanes: at once when its process can be seen from here to be dead, else when its heartbeat was silent for
``SILENCE_LIMIT_S``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from tasks.transport import keys
from tasks.transport.ledger import UnackedLedger, give_back_all
from tasks.transport.liveness import HeartbeatWatch, is_process_dead, own_sessions
from tasks.transport.poison import PoisonHook, drain_poison

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats, and between two rounds of the reclaimer.
PERIOD_S = 0.5
SILENCE_LIMIT_S = float(keys.BEAT_TTL_S)

#: Seconds that a closing channel waits for its session to be settled before the thread continues alone.
SETTLE_WAIT_S = 3.0

#: Seconds after which a session that cannot be settled stops its heartbeat, and others reclaim its messages.
SETTLE_LIMIT_S = 60.0

#: Seconds until a poison hook that failed is called again.
POISON_PAUSE_S = 5.0


class UnackedSession:
    """Keeps one ledger alive. Call ``start`` and later ``retire``; both threads end when it is settled."""

    def __init__(self, ledger: UnackedLedger, *, poison_hook: PoisonHook) -> None:
        self.ledger = ledger
        own_sessions.add(ledger.session)
        self._watch = HeartbeatWatch(limit_s=SILENCE_LIMIT_S, period_s=PERIOD_S)
        self._poison_hook = poison_hook
        self._poison_after = 0.0
        self._retiring = threading.Event()
        self._settled = threading.Event()

    def start(self) -> None:
        """Register the session and start both threads.

        Raises:
            redis.RedisError: the server does not answer.
        """
        self.ledger.beat(0)
        for work, role in ((self._heartbeat, "heartbeat"), (self._reclaimer, "reclaimer")):
            threading.Thread(target=work, name=f"epd-{role}-{self.ledger.session}", daemon=True).start()

    def retire(self) -> None:
        """End the session in good order. Returns when it is settled, or after ``SETTLE_WAIT_S``.

        While the server does not answer, the reclaimer keeps trying and the heartbeat continues.
        """
        if not self._retiring.is_set():
            self._retiring.set()
            self._settled.wait(SETTLE_WAIT_S)

    def _heartbeat(self) -> None:
        count = 0
        while not self._settled.wait(PERIOD_S):
            count += 1
            try:
                self.ledger.beat(count)
            except redis.RedisError as error:
                logger.warning("heartbeat of %s failed: %s", self.ledger.session, error)

    def _reclaimer(self) -> None:
        while not self._retiring.is_set():
            self._attempt(self._reclaim)
            self._retiring.wait(PERIOD_S)
        give_up = time.monotonic() + SETTLE_LIMIT_S
        while not self._attempt(self.ledger.settle) and time.monotonic() < give_up:
            time.sleep(PERIOD_S)
        self._settled.set()
        own_sessions.discard(self.ledger.session)
        self.ledger.close()

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Run one round. The thread survives every error, or nobody would reclaim what the dead held."""
        try:
            work()
        except redis.RedisError as error:
            self._watch.look_failed()
            logger.warning("reclaimer of %s: %s", self.ledger.session, error)
        except Exception:
            logger.exception("reclaimer of %s", self.ledger.session)
        else:
            return True
        return False

    def _reclaim(self) -> None:
        client = self.ledger.client
        sessions: Any = client.hgetall(keys.SESSIONS)
        descriptors = {name.decode(): text for name, text in sessions.items()}
        descriptors.pop(self.ledger.session, None)
        names = list(descriptors)
        beats: Any = client.mget([keys.beat(name) for name in names]) if names else []
        silent = self._watch.look(time.monotonic(), dict(zip(names, beats, strict=True)))
        seen_dead = [name for name in names if is_process_dead(name, descriptors[name])]
        for name in dict.fromkeys([*seen_dead, *silent]):
            moved = give_back_all(self.ledger, name, crashed=True)
            logger.warning("worker session %s is dead; gave back %s messages", name, moved)
        self._drain_poison()

    def _drain_poison(self) -> None:
        if time.monotonic() < self._poison_after:
            return
        if not drain_poison(self.ledger.client, self._poison_hook):
            self._poison_after = time.monotonic() + POISON_PAUSE_S
