"""What the flow works with, as one value: settings, config, store, publisher, decoder, leases and a clock."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from epd.config import Config, ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.media import Modality
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.lookup import cards_of
from epd.processes import PeriodicThread, log_failure
from epd.settings import Settings
from epd.store.flights import Flights
from epd.store.open import Store
from epd.store.records import Cards

if TYPE_CHECKING:
    from workers.decode.children import DecodeChildren

logger = logging.getLogger(__name__)

#: What a task did, by counter name (``epd.telemetry.counters.Count``).
Tally = dict[str, float]

#: Seconds for which announced cards are cached. A missing card is looked up again each time.
CARD_TTL = 2.0


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Add up tallies, without zeros and by plain strings: Celery passes on the ``repr`` of the result."""
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return {str(name): amount for name, amount in total.items() if amount}


class Publisher(Protocol):
    """Publishes messages. Each call raises ``StoreUnavailable`` when the broker does not take them."""

    def fetch(self, messages: Sequence[FetchMessage], *, countdown: float = 0.0) -> None:
        """Publish to the fetch queue, to start after ``countdown`` seconds."""
        ...

    def decode(self, messages: Sequence[DecodeMessage], *, countdown: float = 0.0) -> None:
        """Publish to the decode queue, to start after ``countdown`` seconds."""
        ...

    def encode(self, messages: Sequence[EncodeMessage]) -> None:
        """Publish to the encode queue."""
        ...


class CardCache:
    """The encoder cards of each model, cached for ``CARD_TTL`` seconds.

    Thread-safe, since entries are replaced whole.
    """

    def __init__(self, cards: Cards, clock: Callable[[], float] = time.monotonic) -> None:
        self._cards = cards
        self._clock = clock
        self._kept: dict[str, tuple[float, Mapping[Modality, EncoderCard]]] = {}

    def of(self, name: str, model: ModelConfig) -> Mapping[Modality, EncoderCard]:
        """The cards of a model by track, without encoders that no worker has announced."""
        kept = self._kept.get(name)
        if kept is not None and self._clock() - kept[0] < CARD_TTL:
            return kept[1]
        found = cards_of(model, self._cards)
        if len(found) == sum(model.encoder_for(track) is not None for track in Modality):
            self._kept[name] = (self._clock(), found)
        return found


class Leases(PeriodicThread):
    """Renews the leases of the flights that this process leads, every third of a lease. Thread-safe.

    The thread starts with the first flight.
    """

    def __init__(self, flights: Flights, lease: float) -> None:
        """A flight lives ``lease`` seconds without renewal."""
        super().__init__("leases", lease / 3, self._renew, log_failure(logger, "renewal of leases"))
        self._flights = flights
        self._lock = threading.Lock()
        self._kept: Counter[str] = Counter()

    def add(self, keys: Sequence[str]) -> None:
        """Renew these flights until they are removed."""
        with self._lock:
            self._kept.update(keys)
            if keys and self.ident is None:
                self.start()

    def remove(self, keys: Sequence[str]) -> None:
        """The reverse of ``add``. A flight that was added twice has to be removed twice."""
        with self._lock:
            self._kept.subtract(keys)
            for key in set(keys):
                if self._kept[key] <= 0:
                    del self._kept[key]

    @contextmanager
    def keep(self, keys: Sequence[str]) -> Iterator[None]:
        """Renew these flights while the block runs."""
        self.add(keys)
        try:
            yield
        finally:
            self.remove(keys)

    def _renew(self) -> None:
        with self._lock:
            keys = list(self._kept)
        self._flights.extend(keys)


@dataclass(frozen=True)
class Context:
    """What the work of one process needs.

    ``clock`` gives Unix seconds, since deadlines cross machines. Only a process that decodes has a
    ``decoder``.
    """

    settings: Settings
    config: Config
    store: Store
    publisher: Publisher
    clock: Callable[[], float] = time.time
    decoder: DecodeChildren | None = None
    cards: CardCache = field(init=False)
    leases: Leases = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cards", CardCache(self.store.cards))
        object.__setattr__(self, "leases", Leases(self.store.flights, self.settings.flight_lease))

    def hold_for(self, blob: str) -> Callable[[int], None]:
        """The ``hold`` function of the worker's limits for a blob that is being written."""
        return partial(self.store.blobs.grow, blob)

    def reservation(self, expected: int) -> int:
        """Bytes to reserve for a file whose size is an estimate: at most a sixteenth of the blob directory.

        An estimate that is far too high must not keep everything else out of a small directory.
        """
        return min(expected, self.settings.blob_bytes // 16)
