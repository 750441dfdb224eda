"""Telling the fleet which encoders there are, and telling it again when the store has forgotten."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from epd.contracts.card import EncoderCard
from epd.contracts.errors import StoreUnavailable
from epd.store.redis.records import Cards

_log = logging.getLogger(__name__)

#: Seconds between two looks at whether the cards are still there.
_LOOK_PERIOD = 1.0
_PAUSE = 0.5


class Announcer:
    """Publishes the cards of one worker. ``restore_missing`` is for one thread."""

    def __init__(self, cards: Cards, own: Iterable[EncoderCard]) -> None:
        self._cards = cards
        self._own = tuple(own)
        self._looked_at = time.monotonic()

    def announce_all(self, patience: float) -> None:
        """Publish every card; tries again for ``patience`` seconds, then raises ``StoreUnavailable``."""
        end = time.monotonic() + patience
        while True:
            try:
                for card in self._own:
                    self._cards.announce(card)
                return
            except StoreUnavailable as error:
                if time.monotonic() + _PAUSE > end:
                    raise
                _log.warning("the cards wait for the store: %s", error)
            time.sleep(_PAUSE)

    def restore_missing(self) -> None:
        """Publish cards that are gone, as after a restart of a store without persistence.

        A card of that name by another worker stays: during an update the newest announcement holds.
        Raises ``StoreUnavailable``.
        """
        if time.monotonic() - self._looked_at < _LOOK_PERIOD:
            return
        self._looked_at = time.monotonic()
        found = self._cards.get([card.name for card in self._own])
        for card, known in zip(self._own, found, strict=True):
            if known is None:
                _log.warning("the card of %s was gone, and is announced anew", card.name)
                self._cards.announce(card)
