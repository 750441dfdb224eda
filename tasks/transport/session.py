"""A session's two threads: the heart says that the process lives, the warden looks after those that do not.

The warden of every consuming process watches all sessions. A dead one's messages go back to their lanes
at once when the dead process can be seen from here, else when its heart was silent for ``SILENCE_LIMIT_S``.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import redis

from tasks.transport import keys as broker_keys
from tasks.transport.ledger import UnackedLedger, give_back_all
from tasks.transport.liveness import Obituary, SilenceWatch
from tasks.transport.poison import PoisonHook, drain_poison

logger = logging.getLogger(__name__)

PERIOD_S = 0.5
SILENCE_LIMIT_S = float(broker_keys.BEAT_TTL_S)

#: How long a closing channel waits for its session to be settled before the thread goes on alone.
SETTLE_WAIT_S = 3.0

#: A session that could not be settled for so long stops beating, and other workers take it for dead.
SETTLE_LIMIT_S = 60.0

#: A poison hook that failed is left alone for so long.
POISON_PAUSE_S = 5.0


class UnackedSession:
    """Keeps one ledger alive: ``start``, then ``retire`` once; both threads end when it is settled."""

    def __init__(self, ledger: UnackedLedger, *, poison_hook: PoisonHook) -> None:
        self.ledger = ledger
        self._obituary = Obituary(ledger.session)
        self._watch = SilenceWatch(limit_s=SILENCE_LIMIT_S, period_s=PERIOD_S)
        self._poison_hook = poison_hook
        self._poison_after = 0.0
        self._retiring = threading.Event()
        self._settled = threading.Event()

    def start(self) -> None:
        """Sign on and start both threads. Raises ``redis.RedisError`` when the server does not answer."""
        self.ledger.beat(0)
        for work, role in ((self._heart, "heart"), (self._warden, "warden")):
            threading.Thread(target=work, name=f"epd-{role}-{self.ledger.session}", daemon=True).start()

    def retire(self) -> None:
        """End the session in good order. Returns when it is settled, or after ``SETTLE_WAIT_S``.

        While the server does not answer the warden keeps trying, and the heart keeps beating.
        """
        if not self._retiring.is_set():
            self._retiring.set()
            self._settled.wait(SETTLE_WAIT_S)

    def _heart(self) -> None:
        count = 0
        while not self._settled.wait(PERIOD_S):
            count += 1
            try:
                self.ledger.beat(count)
            except redis.RedisError as error:
                logger.warning("heartbeat of %s failed: %s", self.ledger.session, error)

    def _warden(self) -> None:
        while not self._retiring.is_set():
            self._guarded(self._look_after_others)
            self._retiring.wait(PERIOD_S)
        give_up = time.monotonic() + SETTLE_LIMIT_S
        while not self._guarded(self.ledger.settle) and time.monotonic() < give_up:
            time.sleep(PERIOD_S)
        self._settled.set()
        self._obituary.close()
        self.ledger.close()

    def _guarded(self, work: Any) -> bool:
        """Run one round; the thread outlives every error, or nobody would take over from the dead."""
        try:
            work()
        except redis.RedisError as error:
            self._watch.look_failed()
            logger.warning("warden of %s: %s", self.ledger.session, error)
        except Exception:
            logger.exception("warden of %s", self.ledger.session)
        else:
            return True
        return False

    def _look_after_others(self) -> None:
        client = self.ledger.client
        sessions: Any = client.hgetall(broker_keys.SESSIONS)
        descriptors = {name.decode(): text for name, text in sessions.items()}
        descriptors.pop(self.ledger.session, None)
        names = list(descriptors)
        beats: Any = client.mget([broker_keys.beat(name) for name in names]) if names else []
        silent = self._watch.look(time.monotonic(), dict(zip(names, beats, strict=True)))
        seen_dead = [name for name in names if self._obituary.is_certain(name, descriptors[name])]
        for name in dict.fromkeys([*seen_dead, *silent]):
            moved = give_back_all(self.ledger, name, crashed=True)
            logger.warning("worker session %s is dead; gave back %s messages", name, moved)
        self._see_to_poison()

    def _see_to_poison(self) -> None:
        if time.monotonic() < self._poison_after:
            return
        if not drain_poison(self.ledger.client, self._poison_hook):
            self._poison_after = time.monotonic() + POISON_PAUSE_S
