"""The mover's thread in each fetch worker: embedding files between the tiers, as long as the worker lives.

One of all fetch workers moves at a time, by a lease in the store. A killed one is followed by another when
that is over, and meanwhile nothing is lost: hits are served from where their files lie.
"""

from __future__ import annotations

import logging
import threading

from epd.contracts.errors import StoreUnavailable
from epd.store.embeddings import Embeddings

logger = logging.getLogger(__name__)

#: Seconds between two looks for work where the last one found none, or where the store does not answer.
PERIOD, TROUBLE_PERIOD = 0.25, 2.0
#: Seconds of copying after which new work is asked for, well within the mover's lease.
_ROUND = 3.0


class MoverThread:
    """Runs the mover until it is stopped. Trouble is logged, and the next round tries again."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)

    def start(self) -> None:
        """Begin to move."""
        self._thread.start()

    def stop(self) -> None:
        """End after the running round, waited for only briefly: a copy that breaks off harms nothing."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._stopped.wait(self._round())

    def _round(self) -> float:
        """One round; the seconds until the next."""
        try:
            moved = self._embeddings.move(_ROUND)
        except StoreUnavailable as error:
            logger.warning("mover round left out: %s", error)
            return TROUBLE_PERIOD
        except Exception:
            logger.exception("mover round failed")
            return TROUBLE_PERIOD
        if moved.promoted or moved.demoted or moved.failed:
            logger.info("moved: %s", moved)
        return 0.0 if moved.more else PERIOD
