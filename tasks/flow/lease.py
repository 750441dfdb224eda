"""Keeping flights alive while their item is worked on for longer than a lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from epd.contracts.errors import StoreUnavailable
from tasks.flow.context import Context

logger = logging.getLogger(__name__)


@contextmanager
def kept_flights(context: Context, keys: Sequence[str]) -> Iterator[None]:
    """Renew the leases of some flights every third of a lease while the block runs."""
    if not keys:
        yield
        return
    done = threading.Event()
    keeper = threading.Thread(target=_keep, args=(context, tuple(keys), done), name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        done.set()


def _keep(context: Context, keys: Sequence[str], done: threading.Event) -> None:
    while not done.wait(context.settings.flight_lease / 3):
        try:
            for key in keys:
                context.store.flights.extend(key)
        except StoreUnavailable as error:
            logger.warning("leases not renewed: %s", error)
