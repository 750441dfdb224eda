"""The thread in which a worker tells that it lives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from epd.contracts.errors import StoreUnavailable
from epd.store.records import Heartbeats
from epd.store.values import Heartbeat

logger = logging.getLogger(__name__)

#: The store bounds each beat in time; a thread that takes longer to end is left behind (it is a daemon).
STOP_SECONDS = 10.0


class HeartbeatThread:
    """Beats every ``period`` seconds until it is stopped, whatever the store or ``make`` does."""

    def __init__(self, heartbeats: Heartbeats, make: Callable[[], Heartbeat], period: float) -> None:
        """``make`` gives the heartbeat of the moment; the name in it must stay the same."""
        self._heartbeats = heartbeats
        self._make = make
        self._period = period
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._name: str | None = None
        self._failing = False

    def start(self) -> HeartbeatThread:
        """Beat from now on."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Say goodbye and end. It may be called again, or without ``start``."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while True:
            self._beat()
            if self._stopped.wait(self._period):
                break
        self._leave()

    def _beat(self) -> None:
        try:
            heartbeat = self._make()
            self._name = heartbeat.name
            self._heartbeats.beat(heartbeat)
        except StoreUnavailable as error:
            self._note_failure(error)
        except Exception:
            # A bug in what the worker counts must not make the fleet believe that it died.
            logger.exception("heartbeat failed")
        else:
            if self._failing:
                logger.info("heartbeats reach the store again")
            self._failing = False

    def _note_failure(self, error: StoreUnavailable) -> None:
        if not self._failing:
            logger.warning("heartbeats do not reach the store: %s", error)
        self._failing = True

    def _leave(self) -> None:
        if self._name is None:
            return
        try:
            self._heartbeats.leave(self._name)
        except StoreUnavailable as error:
            logger.warning("goodbye of %s did not reach the store: %s", self._name, error)
