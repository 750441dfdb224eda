"""The thread in which a worker reports that it is alive."""

from __future__ import annotations

import logging
from collections.abc import Callable

from epd.contracts.errors import StoreUnavailable
from epd.processes import PeriodicThread
from epd.store.records import Heartbeats
from epd.store.values import Heartbeat

logger = logging.getLogger(__name__)

#: The store bounds each heartbeat in time; a thread that takes longer to end is left behind (it is a daemon).
STOP_SECONDS = 10.0


class HeartbeatThread(PeriodicThread):
    """Sends a heartbeat every ``period`` seconds until it is stopped, whatever the store or ``make`` does."""

    def __init__(self, heartbeats: Heartbeats, make: Callable[[], Heartbeat], period: float) -> None:
        """``make`` gives the heartbeat of the moment; the worker's name in it must stay the same."""
        super().__init__("heartbeat", period, self._beat, self._note, stop_seconds=STOP_SECONDS)
        self._heartbeats = heartbeats
        self._make = make
        self._worker: str | None = None
        self._failing = False

    def run(self) -> None:
        """Send heartbeats until ``stop``, then remove the worker from the store."""
        super().run()
        self._leave()

    def _beat(self) -> None:
        heartbeat = self._make()
        self._worker = heartbeat.name
        self._heartbeats.beat(heartbeat)
        if self._failing:
            logger.info("heartbeats reach the store again")
        self._failing = False

    def _note(self, error: Exception) -> None:
        """Log that the store does not answer, once. A bug in ``make`` must not end the heartbeats either."""
        if not isinstance(error, StoreUnavailable):
            logger.exception("heartbeat failed")
            return
        if not self._failing:
            logger.warning("heartbeats do not reach the store: %s", error)
        self._failing = True

    def _leave(self) -> None:
        if self._worker is None:
            return
        try:
            self._heartbeats.leave(self._worker)
        except StoreUnavailable as error:
            logger.warning("goodbye of %s did not reach the store: %s", self._worker, error)
