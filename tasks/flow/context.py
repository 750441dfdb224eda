"""What the flow works with: settings, config, store, publisher, cards and a clock, handed in as one value."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from epd.config import Config, ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.media import Modality
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.lookup import cards_of
from epd.settings import Settings
from epd.store.records import Cards
from epd.store.store import Store

#: What a task did, by counter name (``epd.telemetry.counters.Count``).
Tally = dict[str, float]

#: Seconds for which announced cards are believed. A card that is missing is asked for again at once.
CARD_TTL = 2.0


class Publisher(Protocol):
    """Where messages go on to. Each call raises ``StoreUnavailable`` when the broker does not take them."""

    def fetch(self, messages: Sequence[FetchMessage], *, countdown: float = 0.0) -> None:
        """To the fetch queue; with a countdown they start that many seconds later."""
        ...

    def decode(self, messages: Sequence[DecodeMessage], *, countdown: float = 0.0) -> None:
        """To the decode queue, likewise."""
        ...

    def encode(self, messages: Sequence[EncodeMessage]) -> None:
        """To the encode queue."""
        ...


class CardCache:
    """The cards of each model, kept ``CARD_TTL`` seconds. Safe for threads: an entry is replaced whole."""

    def __init__(self, cards: Cards, clock: Callable[[], float] = time.monotonic) -> None:
        self._cards = cards
        self._clock = clock
        self._kept: dict[str, tuple[float, Mapping[Modality, EncoderCard]]] = {}

    def of(self, name: str, model: ModelConfig) -> Mapping[Modality, EncoderCard]:
        """The cards of a model by track; encoders that nobody has announced are left out."""
        kept = self._kept.get(name)
        if kept is not None and self._clock() - kept[0] < CARD_TTL:
            return kept[1]
        found = cards_of(model, self._cards)
        if len(found) == sum(model.encoder_for(track) is not None for track in Modality):
            self._kept[name] = (self._clock(), found)
        return found


@dataclass(frozen=True)
class Context:
    """One process's means. ``clock`` gives Unix seconds, since deadlines cross machines."""

    settings: Settings
    config: Config
    store: Store
    publisher: Publisher
    clock: Callable[[], float] = time.time
    cards: CardCache = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cards", CardCache(self.store.cards))

    def hold_for(self, blob: str) -> Callable[[int], None]:
        """What holds room for a blob that is being written: the ``hold`` of the worker's limits."""
        return partial(self.store.blobs.grow, blob)

    def reservation(self, expected: int) -> int:
        """Bytes to hold for a file whose size is only guessed: a sixteenth of the blob directory at most.

        A guess that is far too high must not keep everything out of a small directory.
        """
        return min(expected, self.settings.blob_bytes // 16)
